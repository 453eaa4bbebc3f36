"""Compare two graphs by the oracle: their outputs on random inputs, and the first difference.

Stubs replace host calls: smooth functions of their operands, so that nothing outside is touched,
and operands that differ by rounding give results that differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph, Node, Slice
from recurra.ir.output_axes import Axes, restore_functions
from recurra.ir.types import NUMPY_NAME, Type, is_floating
from recurra.ir.user_objects import HostFunction
from recurra.ops.control import Call
from recurra.ops.sampled_rows import Samples
from recurra.ops.source import Input
from recurra.reference import interpreter

MAX_EVALUATIONS = 50_000  # evaluations of equations: a second or two
CLOSE = {"float64": 1e-9, "float32": 2e-4}  # others are compared exactly

Array = np.ndarray


@dataclass(frozen=True)
class Difference:
    """The first point at which an output differs."""

    output: str
    point: Mapping[str, int]
    element: tuple[int, ...]
    before: Any
    after: Any

    @property
    def where(self) -> str:
        at = ", ".join(f"{d}={p}" for d, p in self.point.items())
        element = f", element {list(self.element)}" if self.element else ""
        return self.output + (f" at {at}" if at else "") + element


def evaluations(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Count the points that the oracle evaluates."""
    return sum(n.domain.points(sizes) for n in graph.nodes.values())


def as_written(graph: Graph) -> tuple[Axes, ...]:
    """The dims and axes of each output before any dim becomes an axis."""
    nodes = [graph[o] for o in graph.outputs]
    return tuple((n.domain.dims, ("",) * len(n.type.shape)) for n in nodes)


def evaluate_outputs(
    graph: Graph,
    sizes: Mapping[str, int],
    order: Sequence[tuple[str, ...]],
    axes: Sequence[Axes],
    inputs: Mapping[str, Array],
    seed: int = 3,
) -> list[Array]:
    """Evaluate every output as [*order, *shape], also if dims have become `axes`."""
    with np.errstate(all="ignore"):  # padding may hold 1/0
        values = interpreter.run(with_stubs(graph, sizes), sizes, inputs, seed=seed)
    outputs = zip(graph.outputs, order, axes, strict=True)
    return [restore_functions(graph, dims, a)(values[o], np) for o, dims, a in outputs]


def random_inputs(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Random values for the inputs of a graph as it was written."""
    out: dict[str, Array] = {}
    for n in graph.nodes.values():
        if isinstance(n.op, Input):
            assert isinstance(n.type, Type)
            shape = (*(r.size(sizes) for r in n.domain), *n.type.sizes(sizes))
            rng = np.random.default_rng(list(n.name.encode()))
            x = rng.normal(size=shape) * 2
            x = x if n.type.dtype[0] == "f" else x.round()
            out[n.name] = x.astype(NUMPY_NAME[n.type.dtype])
    return out


def difference(
    graph: Graph, sizes: Mapping[str, int], before: Sequence[Array], after: Sequence[Array]
) -> Difference | None:
    """The first point at which the outputs of `graph` differ; None if they agree."""
    for o, a, b in zip(graph.outputs, before, after, strict=True):
        node = graph[o]
        if a.shape != b.shape:
            return Difference(o, {}, (), f"of shape {a.shape}", f"of shape {b.shape}")
        for at in np.argwhere(~_equal(a, b))[:1]:
            rank = len(node.domain)
            lows = [evaluate(r.lo, dict(sizes)) for r in node.domain]
            point = {d: lo + int(p) for d, lo, p in zip(node.domain.dims, lows, at, strict=False)}
            element = tuple(int(k) for k in at[rank:])
            return Difference(o, point, element, a[tuple(at)].item(), b[tuple(at)].item())
    return None


def _equal(left: Array, right: Array) -> Array:
    close = CLOSE.get(left.dtype.name)
    if close is None:
        return left == right
    largest = np.abs(left[np.isfinite(left)]).max(initial=1e-3)
    return np.isclose(right, left, rtol=close, atol=close * largest, equal_nan=True)


def with_stubs(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with stubs for the functions that it calls on the host."""
    nodes = {
        name: replace(n, op=replace(n.op, fn=HostFunction(n.op.fn.key, _stub(n, n.op, sizes))))
        if isinstance(n.op, Call) and not isinstance(n.op, Samples)
        else n
        for name, n in graph.nodes.items()
    }
    return replace(graph, nodes=nodes)


def _stub(node: Node, op: Call, sizes: Mapping[str, int]) -> Callable[..., tuple[Array, ...]]:
    """A stub of a host function, which treats every row alike, whichever rows are in the batch."""
    types = [Type(dtype, shape) for dtype, shape in op.results]
    operands = [a for k, a in enumerate(node.args) if k not in op.unseen]
    rows = [bool(op.batch_dims) and any(isinstance(e, Slice) for e in a.index) for a in operands]

    def call(*args: Array) -> tuple[Array, ...]:
        group, xs = args[: len(op.group)], args[len(op.group) :]
        total: Any = 0.0
        for x, of_rows in zip(map(np.asarray, xs), rows, strict=True):
            if is_floating(x.dtype):
                total = total + np.tanh(x).sum(axis=tuple(range(of_rows, x.ndim)))
        first = int(group[0]) if group else 0
        return tuple(_wave(k, total, t, sizes, first) for k, t in enumerate(types))

    return call


def _wave(index: int, total: Array, type_: Type, sizes: Mapping[str, int], group: int) -> Array:
    """Numbers of order one that depend on the operands of a call; flags and counts do not."""
    shape = type_.sizes(sizes)
    ramp = np.arange(prod(shape)).reshape(shape) + group * prod(shape)
    total = np.reshape(total, np.shape(total) + (1,) * (len(shape) - np.ndim(total)))
    wave = np.sin(ramp + index + total) if type_.dtype[0] == "f" else (ramp + index) % 2
    return np.asarray(wave, NUMPY_NAME[type_.dtype])
