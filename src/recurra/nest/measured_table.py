"""Tables: everything that an agent can reach in one problem, measured once, as arrays.

Learners then step thousands of times faster than kernels can be measured, and runs can be repeated
to the last bit. A table is an oracle, too: `best` is what no policy exceeds.
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
from recurra.nest.problem import NestProblem
from recurra.nest.search import Evaluate
from recurra.nest.state import WIDTH, Vector, loop_row, vector
from recurra.nest.text import parse
from recurra.support import atomic_write, json_text

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Table:
    """States of one problem; state 0 is the untiled nest.

    after[s, a] is the state after an action, s itself where the action is not legal or leads out
    of the table (`legal[s, a]` says which).
    """

    problem: NestProblem
    actions: Actions
    orders: tuple[str, ...]
    cursors: NDArray[np.int32]
    after: NDArray[np.int32]
    legal: NDArray[np.bool_]
    gflops: NDArray[np.float32]
    peak: float
    """GFLOPS by which rewards are divided"""

    @property
    def best(self) -> float:
        """The most GFLOPS of any state: the oracle."""
        return float(self.gflops.max())

    def nest(self, state: int) -> Nest:
        found = scheduled(self.problem, self.orders[state])
        return Nest(self.problem, found.compute, found.write, int(self.cursors[state]))

    def vector(self, state: int) -> Vector:
        """[loops, 20], made when it is first asked for."""
        if state not in self._vectors:
            self._vectors[state] = vector(self.nest(state), self.actions.max_loops)
        return self._vectors[state]

    def vectors(self) -> Vector:
        """[states, loops, 20], of all of them."""
        places = {order: j for j, order in enumerate(dict.fromkeys(self.orders))}
        once = np.zeros((len(places), self.actions.max_loops, WIDTH), np.float32)
        known: dict[tuple[str, bool, int, int], Vector] = {}
        for order, j in places.items():
            self._fill(once[j], order, known)
        found = once[[places[order] for order in self.orders]]
        found[np.arange(len(found)), self.cursors, 0] = 1  # nests of one order differ by these
        return found

    def _fill(
        self, rows: Vector, order: str, known: dict[tuple[str, bool, int, int], Vector]
    ) -> None:
        """The rows of one order: what a loop's row is, its index, step and extent decide."""
        place = 0
        for words, compute in zip(order.split(" | "), (True, False), strict=False):
            left = dict(self.problem.extents)
            for word in words.split():
                index, _, step = word.partition("/")
                key = index, compute, int(step or 1), left[index]
                if key not in known:
                    known[key] = loop_row(self.problem, *key)
                rows[place] = known[key]
                left[index] = key[2]
                place += 1

    def evaluate(self, nest: Nest) -> float:
        """GFLOPS by the table: an evaluator for searches and environments."""
        try:
            return float(self.gflops[self._places[nest.order]])
        except KeyError:
            raise RecurraError(
                f"the table does not know the nest {nest.order!r}",
                facts=f"it has {len(self.orders)} states, {self.actions.steps} actions deep",
            ) from None

    @cached_property
    def _places(self) -> dict[str, int]:
        return {order: k for k, order in enumerate(self.orders)}

    @cached_property
    def _vectors(self) -> dict[int, Vector]:
        return {}

    def save(self, path: Path) -> None:
        """A compressed .npz file; nothing in it is executed when it is loaded."""
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
    """A table that was saved; raises RecurraError where the file is none."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json_text.parse(str(arrays.pop("about")))
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}, not {FORMAT}")
        given = about["actions"]
        given["factors"] = tuple(given["factors"])
        actions = Actions(**given)
        problem, orders = parse(about["problem"]), tuple(about["orders"])
        return Table(problem, actions, orders, **arrays, peak=about["peak"])
    except RecurraError:
        raise
    except Exception as error:  # whatever is in a file, it is no table of ours
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
    """Evaluates every nest within one episode of the untiled one; `tell`s (done, all)."""
    states, after, legal = _explored(untiled(problem), actions)
    known: dict[str, float] = {}
    for k, nest in enumerate(states):
        if nest.order not in known:
            known[nest.order] = evaluate(nest)
        if tell:
            tell(k + 1, len(states))
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


def _explored(
    start: Nest, actions: Actions
) -> tuple[list[Nest], NDArray[np.int32], NDArray[np.bool_]]:
    """The states within one episode, nearest first; where actions lead; which are legal there."""
    states, place = [start], {(start.order, start.cursor): 0}
    ways: list[dict[str, int]] = []
    depth, layer_end = 0, 1
    while len(ways) < len(states):
        if len(ways) == layer_end:
            depth, layer_end = depth + 1, len(states)
        ways.append({})
        for name, child in actions.successors(states[len(ways) - 1]).items():
            key = (child.order, child.cursor)
            if key not in place and depth < actions.steps:
                place[key] = len(states)
                states.append(child)
            if key in place:
                ways[-1][name] = place[key]
    after = np.array(
        [[way.get(name, k) for name in actions.names] for k, way in enumerate(ways)], np.int32
    )
    legal = np.array([[name in way for name in actions.names] for way in ways])
    return states, after, legal
