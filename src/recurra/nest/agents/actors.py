"""Actors: what acts while a learner learns; in processes that are watched, or here, in turns.

An actor is told weights and answers with arrays: episodes, transitions, gradients. A pool has so
many of them, each with one request at a time, so none runs far ahead of the learner. A process that
dies, or does not answer, is replaced by another one with other random numbers (`supervised.py`).
`python -m recurra.nest.agents.actors FD` is such a process.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from recurra.nest.agents.world import World, opened
from recurra.supervised import Crew, Say, answer_until_gone, environment

Answer = Mapping[str, NDArray[Any]]
Where = Literal["processes", "turns"]
"""Actors are processes; or they act in the learner's own, one after the other: slower, but a run
can be repeated."""

PATIENCE_S = 120.0  # the longest that an answer may take


@dataclass(frozen=True)
class Task:
    """What an actor is made of: which of how many it is, and its random numbers."""

    kind: Callable[[World, Task], Actor]
    settings: Any
    who: int
    count: int
    seed: tuple[int, ...]


class Actor(Protocol):
    """Made by `kind(world, task)`."""

    random: np.random.Generator

    def work(self, weights: Any) -> Answer: ...


class Pool(Protocol):
    """Actors, counted from 0."""

    def begin(self, weights: Any) -> None:
        """Asks all that are idle."""
        ...

    def ask(self, who: int, weights: Any) -> None:
        """Asks an idle one."""
        ...

    def answer(self) -> tuple[int, Answer]:
        """Waits for an answer; its actor is idle then."""
        ...

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Any], steps: int) -> None:
        """Before the first request; `steps` have been taken before."""
        ...

    def close(self) -> None: ...


def pool(kind: Callable[[World, Task], Actor], world: World, settings: Any) -> Pool:
    """`settings` has actors, pool, seed."""
    tasks = [
        Task(kind, settings, who, settings.actors, (settings.seed, who))
        for who in range(settings.actors)
    ]
    return Turns(world, tasks) if settings.pool == "turns" else Processes(world, tasks)


class Turns:
    """Actors of this process: they act when an answer is waited for, first asked first."""

    def __init__(self, world: World, tasks: list[Task]) -> None:
        self.actors = [task.kind(world, task) for task in tasks]
        self.asked: dict[int, Any] = {}

    def begin(self, weights: Any) -> None:
        for who in range(len(self.actors)):
            if who not in self.asked:
                self.ask(who, weights)

    def ask(self, who: int, weights: Any) -> None:
        self.asked[who] = _arrays(weights)

    def answer(self) -> tuple[int, Answer]:
        who = next(iter(self.asked))
        return who, self.actors[who].work(self.asked.pop(who))

    def state(self) -> dict[str, Any]:
        order = {str(who): k for k, who in enumerate(self.asked)}
        asked = {str(who): weights for who, weights in self.asked.items()}
        random = {str(who): actor.random for who, actor in enumerate(self.actors)}
        return {"order": order, "asked": asked, "random": random}

    def restore(self, state: Mapping[str, Any], steps: int) -> None:
        asked: Mapping[str, int] = state.get("order", {})
        self.asked = {int(who): state["asked"][who] for who in sorted(asked, key=asked.__getitem__)}
        for who, actor in enumerate(self.actors):
            actor.random = state["random"][str(who)]

    def close(self) -> None:
        self.asked.clear()


class Processes:
    """Actors that are processes; the world lies in files that all of them map."""

    def __init__(
        self,
        world: World,
        tasks: list[Task],
        *,
        say: Say | None = None,
        patience: float = PATIENCE_S,
    ) -> None:
        self.tasks = tasks
        self.folder = tempfile.TemporaryDirectory(prefix="recurra-")
        world.save(Path(self.folder.name))
        self.lives = [-1] * len(tasks)
        self.steps = 0
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        env = environment(JAX_PLATFORMS="cpu", **alone)
        self.crew = Crew(__name__, len(tasks), self._given, patience=patience, env=env, say=say)

    def _given(self, who: int) -> tuple[str, Task]:
        self.lives[who] += 1
        task = self.tasks[who]
        seed = (*task.seed, self.steps, self.lives[who])
        return self.folder.name, replace(task, seed=seed)

    def begin(self, weights: Any) -> None:
        self.crew.ask_idle(_arrays(weights))

    def ask(self, who: int, weights: Any) -> None:
        self.crew.ask(who, _arrays(weights))

    def answer(self) -> tuple[int, Answer]:
        return self.crew.answer()

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any], steps: int) -> None:
        self.steps = steps  # other random numbers than at the beginning

    def close(self) -> None:
        self.crew.close()
        self.folder.cleanup()


def _arrays(weights: Any) -> Answer:
    return {name: np.asarray(w) for name, w in weights.items()}


def _start(given: tuple[str, Task]) -> Callable[[Any], Answer]:
    folder, task = given
    return task.kind(opened(Path(folder)), task).work


if __name__ == "__main__":
    answer_until_gone(int(sys.argv[1]), _start)
