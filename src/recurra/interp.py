"""The oracle: evaluates a graph point by point, by memoised recursion, with numpy.

Slow on purpose. Every pass, schedule, plan and backend is checked against it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np

import recurra.ops as _ops  # noqa: F401  (fills the registry)
from recurra.ir.expr import Env, evaluate
from recurra.ir.graph import Graph, Ref, Slice
from recurra.ir.types import NUMPY_NAME
from recurra.ops.control import Merge
from recurra.ops.source import Input

Array = np.ndarray


def points(graph: Graph, name: str, env: Env) -> Iterable[tuple[int, ...]]:
    """Every point of a node's domain, in lexicographic order."""
    spans = [range(evaluate(r.lo, env), evaluate(r.hi, env)) for r in graph[name].domain]
    return product(*spans)


class Oracle:
    """Values of a graph at points, each computed once, on demand."""

    def __init__(self, graph: Graph, bounds: Mapping[str, int], inputs: Mapping[str, Any], seed: int):
        self.graph, self.inputs = graph, inputs
        self.env: dict[str, Any] = {**bounds, "seed": seed}
        self.memo: dict[tuple[str, tuple[int, ...]], Any] = {}

    def value(self, name: str, point: tuple[int, ...]) -> Any:
        key = (name, point)
        if key not in self.memo:
            self.memo[key] = self.compute(name, point)
        return self.memo[key]

    def compute(self, name: str, point: tuple[int, ...]) -> Any:
        node = self.graph[name]
        env = {**self.env, **dict(zip(node.domain.dims, point, strict=True))}
        for r, p in zip(node.domain, point, strict=True):
            inside = evaluate(r.lo, env) <= p < evaluate(r.hi, env)
            assert inside, f"{name} is asked for at {point}, outside {node.domain}"
        match node.op:
            case Input():
                given = np.asarray(self.inputs[name])
                return given[point] if point else given
            case Merge() as merge:
                return self.read(node.args[merge.arm(env)], env)
            case op:
                out = op.run(np, env, *(self.read(a, env) for a in node.args))
                return out if isinstance(out, tuple) else np.asarray(out)

    def read(self, ref: Ref, env: Env) -> Any:
        return self._stack(ref, env, (), 0)

    def _stack(self, ref: Ref, env: Env, point: tuple[int, ...], k: int) -> Any:
        if k == len(ref.index):
            return self.value(ref.name, point)
        e = ref.index[k]
        if not isinstance(e, Slice):
            return self._stack(ref, env, (*point, evaluate(e, env)), k + 1)
        spots = range(evaluate(e.lo, env), evaluate(e.hi, env), e.step)
        rows = [self._stack(ref, env, (*point, p), k + 1) for p in spots]
        size = len(rows) if e.pad is None else evaluate(e.pad, env)
        if size != len(rows) or not rows:
            shape, dtype = self._row(ref, env, k + 1)
            rows += [np.zeros(shape, dtype)] * (size - len(rows))
            return np.stack(rows) if rows else np.zeros((0, *shape), dtype)
        return np.stack(rows)

    def _row(self, ref: Ref, env: Env, k: int) -> tuple[tuple[int, ...], str]:
        """Shape and type of one row of a slice, also when the slice is empty."""
        kept = Ref(ref.name, (*(0 if isinstance(e, Slice) else e for e in ref.index[:k]), *ref.index[k:]))
        type_ = self.graph.read_type(kept)
        return tuple(evaluate(s, env) for s in type_.shape), NUMPY_NAME[type_.dtype]


def run(
    graph: Graph,
    bounds: Mapping[str, int],
    inputs: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
) -> dict[str, Array]:
    """All points of every output, stacked over its domain: [*domain, *shape]."""
    oracle = Oracle(graph, bounds, inputs or {}, seed)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 100_000))  # a recurrence is as deep as it is long
    try:
        return {
            o: collect(graph, o, oracle.env, lambda p, o=o: oracle.value(o, p))
            for o in graph.outputs
        }
    finally:
        sys.setrecursionlimit(limit)


def collect(graph: Graph, name: str, env: Env, at: Callable[[tuple[int, ...]], Any]) -> Array:
    """One array over the whole domain of a node."""
    domain = graph[name].domain
    rows = [at(p) for p in points(graph, name, env)]
    lead = tuple(r.size(env) for r in domain)
    if not rows:
        type_ = graph[name].type
        return np.zeros((*lead, *(evaluate(s, env) for s in type_.shape)), NUMPY_NAME[type_.dtype])
    return np.reshape(np.stack(rows), (*lead, *rows[0].shape))
