"""The state of a search: a budget of CPU time, a seed, and the best answer so far.

A solver is a function of a `Search`; `solver` turns it into the public `solve(problem, seconds,
seed, progress)`. When the time is over, and after an interrupt or a lack of memory, the best answer
so far is validated and returned.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import numpy as np

from recurra.errors import RecurraError
from recurra.mapping import engine_choice
from recurra.mapping.engine_choice import Engine
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Problem, Solution, nothing

Progress = Callable[[float, int, Solution], None]  # CPU seconds, reward in picoseconds, answer


FINALISTS = 6  # the last best answers, of which the simulator may prefer one before the last


class Solver(Protocol):
    """The signature of every solver: CPU seconds, a seed, and a callback for better answers."""

    def __call__(
        self,
        problem: Problem,
        seconds: float = 10.0,
        seed: int = 0,
        progress: Progress | None = None,
        engine: Engine | None = None,
    ) -> Solution: ...


class Search:
    """A problem, an engine, random numbers and a deadline, and the best answer so far."""

    def __init__(
        self, problem: Problem, seconds: float, seed: int, progress: Progress | None, engine: Engine
    ) -> None:
        if not seconds > 0:
            raise RecurraError(f"a search needs time, not {seconds} seconds")
        if seed < 0:
            raise RecurraError(f"seed {seed} is negative")
        self.problem, self.seconds, self.engine = problem, seconds, engine
        self.flat = flat(problem)
        self.random = np.random.default_rng(seed)
        self.reward, self.solution = 0, nothing(problem)
        self.target_reward = float("inf")  # the reward at which the search ends
        self.scale = max(1, problem.total)  # temperatures are shares of it
        self.finalists: deque[Solution] = deque([self.solution], FINALISTS)
        self.stopped = False  # by the user
        self._progress = progress
        self.worker_seconds = 0.0  # CPU seconds of other processes
        self._start = time.process_time()

    @property
    def spent(self) -> float:
        """The CPU seconds so far."""
        return time.process_time() - self._start + self.worker_seconds

    def running(self, until: float = 1.0) -> bool:
        """Return whether time is left in this share of the budget, and reward to be gained."""
        return self.spent < until * self.seconds and self.reward < self.target_reward

    def stop(self) -> None:
        """End the search: from now on no time is left."""
        self.stopped, self.seconds = True, min(self.seconds, max(self.spent, 1e-9))

    def offer(self, reward: int, solution: Callable[[], Solution]) -> bool:
        """Keep an answer if it is the best so far; return whether it is."""
        if reward <= self.reward:
            return False
        self.reward, self.solution = reward, solution()
        self.finalists.append(self.solution)
        if self._progress is not None:
            self._progress(self.spent, reward, self.solution)
        return True

    def offer_tie(self, reward: int, solution: Callable[[], Solution]) -> None:
        """Make an answer a finalist if it gains as much as the best so far."""
        if reward == self.reward and (answer := solution()) not in self.finalists:
            self.finalists.append(answer)


def solver(search_with: Callable[[Search], object]) -> Solver:
    """Return the public function of a solver, which validates each answer."""

    @functools.wraps(search_with)
    def solve(
        problem: Problem,
        seconds: float = 10.0,
        seed: int = 0,
        progress: Progress | None = None,
        engine: Engine | None = None,
    ) -> Solution:
        search = Search(problem, seconds, seed, progress, engine or engine_choice.engine())
        with suppress(KeyboardInterrupt, MemoryError):  # the answer is the best so far
            search_with(search)
        validate(problem, search.solution)
        return search.solution

    return solve
