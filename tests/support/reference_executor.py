"""Reference executor: run statements point by point in the order of a schedule, with NumPy.

The interpreter computes the values. Reading a place before it is written is an error, and so is
writing it twice. Slow on purpose: lowering to statements and scheduling are checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from recurra.ir.expr import Env, evaluate
from recurra.ir.op import Op
from recurra.ir.statement import Statement
from recurra.ir.types import NUMPY_NAME, Type, is_float
from recurra.ops.reduction import Fold
from recurra.reference.interpreter import Oracle, collect
from recurra.schedule.tree import Exec, Item, Loop, Schedule

Point = tuple[int, ...]
Clocks = tuple[tuple[Loop, int], ...]  # the loops around, each with its time


def run_statements(
    schedule: Schedule, bounds: Mapping[str, int], inputs: Mapping[str, Any], seed: int = 0
) -> dict[str, np.ndarray]:
    """Return every output, stacked over its domain: [*domain, *shape]."""
    run = ReferenceExecutor(schedule, bounds, inputs, seed)
    run.run_items(schedule.items, ())
    graph = schedule.graph
    return {
        name: collect(graph, name, run.env, lambda point, name=name: run.value(name, point))
        for name in graph.outputs
    }


class ReferenceExecutor(Oracle):
    """The arrays of a program while its statements run; no place is ever freed."""

    def __init__(
        self,
        schedule: Schedule,
        bounds: Mapping[str, int],
        inputs: Mapping[str, Any],
        seed: int,
    ):
        super().__init__(schedule.graph, bounds, inputs, seed)
        self.statements = schedule.statements

    def value(self, name: str, point: Point) -> Any:
        """Return the value at a place of an array; nothing is computed on demand."""
        assert (name, point) in self.memo, f"{name}{point} is read before it is written"
        return self.memo[name, point]

    def run_items(self, items: tuple[Item, ...], clocks: Clocks) -> None:
        for it in items:
            if isinstance(it, Exec):
                self.run_statement(self.statements[it.name], clocks)
                continue
            for time in self.times(it, clocks):
                self.run_items(it.body, (*clocks, (it, time)))

    def times(self, loop: Loop, clocks: Clocks) -> range:
        """The times of a loop at which any of its statements may have a point."""
        ends: list[int] = []
        for name in loop.shift:
            r = self.statements[name].domain[loop.dim]
            times = loop.times(name, r, self.point_of(name, clocks))
            ends += [times[k] for k in (0, -1) if times]
        return range(min(ends, default=0), max(ends, default=-1) + 1)

    def point_of(self, name: str, clocks: Clocks) -> dict[str, Any]:
        """Bounds, and the point at which a statement runs at these times."""
        return {**self.env, **{loop.dim: loop.point(name, time) for loop, time in clocks}}

    def run_statement(self, statement: Statement, clocks: Clocks) -> None:
        """Run a statement at its point, if it has one at these times."""
        env = self.point_of(statement.name, clocks)
        if not all(
            evaluate(r.lo, env) <= env[r.dim] < evaluate(r.hi, env) for r in statement.domain
        ):
            return
        if not evaluate(statement.where, env):
            return
        key = (statement.array, tuple(evaluate(e, env) for e in statement.write.index))
        if statement.accumulates:
            assert isinstance(statement.op, Fold)
            part, join = self.read(statement.args[0], env), Op.registry[statement.op.monoid_of]()
            self.memo[key] = join.eval(np, self.memo[key], part) if key in self.memo else part
            return
        assert key not in self.memo, f"{statement.array}{key[1]} is written twice"
        if statement.polls and not self.is_decided_for(statement, env):
            self.memo[key] = _skipped(statement, env)
            return
        self.memo[key] = self.apply(replace(statement, args=statement.operands), key[1], env)

    def is_decided_for(self, statement: Statement, env: Env) -> bool:
        """Tell whether data say that the statement is needed at a point."""
        return all(bool(self.read(c.ref, env)) == c.holds for c in statement.decided_by)


def _skipped(statement: Statement, env: Env) -> np.ndarray:
    """The value of a skipped statement, which must not reach a result: NaN if it is a float."""
    assert isinstance(statement.type, Type)
    value = np.nan if is_float(statement.type.dtype) else 0
    return np.full(statement.type.sizes(env), value, NUMPY_NAME[statement.type.dtype])
