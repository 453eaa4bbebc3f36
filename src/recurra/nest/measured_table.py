"""Tables: every state that an agent can reach in one problem, measured once, as arrays.

Learners step in them thousands of times faster than kernels can be measured, and runs are
reproducible to the last bit. A table is an oracle, too: no policy exceeds `best`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recurra.errors import RecurraError
from recurra.nest.actions import Actions
from recurra.nest.loops import Nest, scheduled, untiled
from recurra.nest.observation import WIDTH, Vector, loop_row
from recurra.nest.problem import NestProblem
from recurra.nest.search import Evaluate, reachable
from recurra.nest.text import parse
from recurra.support import atomic_write, json_text

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Table:
    """States of one problem; state 0 is the untiled nest.

    after[s, a] is the state after an action, or s itself where the action is not legal or leaves
    the table; `legal` is False in both cases.
    """

    problem: NestProblem
    actions: Actions
    orders: tuple[str, ...]
    cursors: NDArray[np.int32]
    after: NDArray[np.int32]
    legal: NDArray[np.bool_]
    gflops: NDArray[np.float32]
    peak: float
    """GFLOPS, the unit of rewards"""

    @property
    def best(self) -> float:
        """The most GFLOPS of any state."""
        return float(self.gflops.max())

    def nest(self, state: int) -> Nest:
        found = scheduled(self.problem, self.orders[state])
        return Nest(self.problem, found.compute, found.write, int(self.cursors[state]))

    def vectors(self) -> Vector:
        """Return [states, loops, 20], `state.vector` of every state."""
        numbers = {order: j for j, order in enumerate(dict.fromkeys(self.orders))}
        once = np.zeros((len(numbers), self.actions.max_loops, WIDTH), np.float32)
        cache: dict[tuple[str, bool, int, int], Vector] = {}
        for order, j in numbers.items():
            self._fill(once[j], order, cache)
        vectors = once[[numbers[order] for order in self.orders]]
        vectors[np.arange(len(vectors)), self.cursors, 0] = 1  # nests of one order differ by these
        return vectors

    def _fill(
        self, rows: Vector, order: str, cache: dict[tuple[str, bool, int, int], Vector]
    ) -> None:
        """Fill the rows of one order: a loop's row depends on its index, step and extent."""
        row = 0
        for words, compute in zip(order.split(" | "), (True, False), strict=False):
            left = dict(self.problem.extents)
            for word in words.split():
                index, _, step = word.partition("/")
                key = index, compute, int(step or 1), left[index]
                if key not in cache:
                    cache[key] = loop_row(self.problem, *key)
                rows[row] = cache[key]
                left[index] = key[2]
                row += 1

    def evaluate(self, nest: Nest) -> float:
        """Look up the GFLOPS of a nest: an evaluator for searches and environments."""
        try:
            return float(self.gflops[self._states[nest.order]])
        except KeyError:
            raise RecurraError(
                f"the table does not know the nest {nest.order!r}",
                facts=f"it has {len(self.orders)} states, {self.actions.steps} actions deep",
            ) from None

    @cached_property
    def _states(self) -> dict[str, int]:
        return {order: k for k, order in enumerate(self.orders)}

    def save(self, path: Path) -> None:
        """Write a compressed .npz file; nothing in it is executed when it is loaded."""
        about = {
            "format": FORMAT,
            "problem": str(self.problem),
            "actions": asdict(self.actions),
            "orders": self.orders,
            "peak": self.peak,
        }
        packed = io.BytesIO()
        np.savez_compressed(
            packed,
            about=json.dumps(about),
            cursors=self.cursors,
            after=self.after,
            legal=self.legal,
            gflops=self.gflops,
        )
        atomic_write.save(path, packed.getvalue())


def load(path: Path) -> Table:
    """Load a table that was saved; raise RecurraError where the file is none."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json_text.parse(str(arrays.pop("about")))
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}, not {FORMAT}")
        problem, actions = parse(about["problem"]), Actions.from_json(about["actions"])
        return Table(problem, actions, tuple(about["orders"]), **arrays, peak=about["peak"])
    except RecurraError:
        raise
    except Exception as error:  # a damaged file may raise anything
        facts = f"it has no {error}" if isinstance(error, KeyError) else str(error) or repr(error)
        raise RecurraError(f"{path} is no table of nests", facts=facts) from None


def tabulate(
    problem: NestProblem,
    actions: Actions,
    evaluate: Evaluate,
    peak: float,
    *,
    tell: Callable[[int, int], None] | None = None,
) -> Table:
    """Evaluate every nest within one episode of the untiled one; `tell` hears (done, all)."""
    states = list(reachable(untiled(problem), actions))
    known: dict[str, float] = {}
    for k, nest in enumerate(states):
        if nest.order not in known:
            known[nest.order] = evaluate(nest)
        if tell:
            tell(k + 1, len(states))
    numbers = {(nest.order, nest.cursor): k for k, nest in enumerate(states)}
    after = np.repeat(np.arange(len(states), dtype=np.int32)[:, None], len(actions.names), axis=1)
    legal = np.zeros(after.shape, np.bool_)
    for k, nest in enumerate(states):
        for a, name in enumerate(actions.names):
            child = actions.successor(nest, name)
            if child and (state := numbers.get((child.order, child.cursor))) is not None:
                after[k, a], legal[k, a] = state, True
    return Table(
        problem,
        actions,
        tuple(n.order for n in states),
        np.array([n.cursor for n in states], np.int32),
        after,
        legal,
        np.array([known[n.order] for n in states], np.float32),
        peak,
    )
