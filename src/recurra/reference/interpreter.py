"""The oracle: evaluate a graph point by point, by memoized recursion, with NumPy.

Slow on purpose. Every pass, schedule, plan and backend is checked against it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np

from recurra.analysis.demanded_points import branch_conditions
from recurra.analysis.diagnostics import display_name
from recurra.errors import ScheduleError
from recurra.ir.expr import SEED, TRUE, Env, evaluate
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.statement import Statement
from recurra.ir.types import NUMPY_NAME, Type
from recurra.ir.value_conversion import fitted
from recurra.ops.control import Call, Merge
from recurra.ops.source import Input

Array = np.ndarray
Show = Callable[[str, tuple[int, ...], Any], None]


def _waits_for_itself(graph: Graph, name: str, point: tuple[int, ...]) -> ScheduleError:
    node = graph[name]
    return ScheduleError(
        f"a point of {display_name(graph, name)} waits for itself",
        facts=f"its value at ({', '.join(map(str, point))}) is needed to compute that value",
        hint="let a read on the way ask for another point, such as t-1",
        loc=node.loc,
    )


def points(graph: Graph, name: str, env: Env) -> Iterable[tuple[int, ...]]:
    """Every point of a node's domain, in lexicographic order."""
    spans = [range(evaluate(r.lo, env), evaluate(r.hi, env)) for r in graph[name].domain]
    return product(*spans)


class Oracle:
    """An evaluator of a graph at points: each is computed once, on demand, and passed to `show`."""

    def __init__(
        self,
        graph: Graph,
        bounds: Mapping[str, int],
        inputs: Mapping[str, Any],
        seed: int,
        show: Show | None = None,
    ):
        self.graph, self.inputs, self.show = graph, inputs, show
        self.env: dict[str, Any] = {**bounds, SEED: seed}
        self.memo: dict[tuple[str, tuple[int, ...]], Any] = {}
        self.pending: set[tuple[str, tuple[int, ...]]] = set()

    def value(self, name: str, point: tuple[int, ...]) -> Any:
        key = (name, point)
        if key in self.pending:
            raise _waits_for_itself(self.graph, name, point)
        if key not in self.memo:
            self.pending.add(key)
            self.memo[key] = self.compute(name, point)
            self.pending.remove(key)
            if self.show is not None:
                self.show(name, point, self.memo[key])
        return self.memo[key]

    def compute(self, name: str, point: tuple[int, ...]) -> Any:
        node = self.graph[name]
        env = {**self.env, **dict(zip(node.domain.dims, point, strict=True))}
        for r, p in zip(node.domain, point, strict=True):
            inside = evaluate(r.lo, env) <= p < evaluate(r.hi, env)
            assert inside, f"{name} is asked for at {point}, outside {node.domain}"
        return self.apply(node, point, env)

    def apply(self, node: Node | Statement, point: tuple[int, ...], env: Env) -> Any:
        """The value of the right side at a point of the domain, which is in `env` too."""
        match node.op:
            case Input() as op:
                given = op.given(node, self.env, self.inputs)
                given = fitted(given, op.dtype, f"the input {op.of or node.name}", loc=node.loc)
                lows = (evaluate(r.lo, env) for r in node.domain)
                return given[tuple(p - lo for p, lo in zip(point, lows, strict=True))]
            case Merge() as merge:
                return self.read(node.args[merge.arm(env)], env)
            case op:
                out = op.run(np, env, *(self.read(a, env) for a in node.args))
                if isinstance(node.op, Call):  # its function may reuse its arrays
                    return tuple(map(np.array, out))
                return np.asarray(out)

    def read(self, ref: Ref, env: Env) -> Any:
        return self._stack(ref, env, (), 0)

    def _stack(self, ref: Ref, env: Env, point: tuple[int, ...], index: int) -> Any:
        if index == len(ref.index):
            return self.value(ref.name, point)
        e = ref.index[index]
        if not isinstance(e, Slice):
            return self._stack(ref, env, (*point, evaluate(e, env)), index + 1)
        places = range(evaluate(e.lo, env), evaluate(e.hi, env), e.step)
        rows = [self._stack(ref, env, (*point, p), index + 1) for p in places]
        size = len(rows) if e.pad is None else evaluate(e.pad, env)
        if size != len(rows) or not rows:
            shape, dtype = self._row(ref, env, index + 1)
            rows += [np.zeros(shape, dtype)] * (size - len(rows))
            return np.stack(rows) if rows else np.zeros((0, *shape), dtype)
        return np.stack(rows)

    def _row(self, ref: Ref, env: Env, index: int) -> tuple[tuple[int, ...], str]:
        """Shape and type of one row of a slice, also of an empty one."""
        first = (0 if isinstance(e, Slice) else e for e in ref.index[:index])
        type_ = self.graph.read_type(Ref(ref.name, (*first, *ref.index[index:])))
        return tuple(evaluate(s, env) for s in type_.shape), NUMPY_NAME[type_.dtype]


def run(
    graph: Graph,
    bounds: Mapping[str, int],
    inputs: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    show: Show | None = None,
) -> dict[str, Array]:
    """Evaluate every output, stacked over its domain as [*domain, *shape], and every effect."""
    oracle = Oracle(graph, bounds, inputs or {}, seed, show)
    with _deep_recursion(), np.errstate(all="ignore"):  # integers wrap around, 1 / 0 is inf
        outputs = {
            o: collect(graph, o, oracle.env, lambda p, o=o: oracle.value(o, p))
            for o in graph.outputs
        }
        effects = [n for n in graph.nodes.values() if not n.op.pure]
        taken = branch_conditions(graph) if effects else {}
        for n in effects:
            for point in points(graph, n.name, oracle.env):
                env = {**oracle.env, **dict(zip(n.domain.dims, point, strict=True))}
                if evaluate(taken.get(n.name, TRUE), env):
                    oracle.value(n.name, point)
    return outputs


@contextmanager
def _deep_recursion() -> Generator[None]:
    """Raise the recursion limit: a point may depend on all points before it."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 100_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def collect(graph: Graph, name: str, env: Env, at: Callable[[tuple[int, ...]], Any]) -> Array:
    """Stack the values at all points of a node's domain."""
    domain = graph[name].domain
    rows = [at(p) for p in points(graph, name, env)]
    lead = tuple(r.size(env) for r in domain)
    if not rows:
        type_ = graph[name].type
        assert isinstance(type_, Type), f"{name} has no points and no array type"
        return np.zeros((*lead, *type_.sizes(env)), NUMPY_NAME[type_.dtype])
    return np.reshape(np.stack(rows), (*lead, *np.shape(rows[0])))
