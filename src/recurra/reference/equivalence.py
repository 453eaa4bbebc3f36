"""Do two graphs have one answer? The oracle tells, and where they first differ.

Inputs are made up. Host calls are stood in for by smooth functions of their operands: nothing
outside is touched, and what differs by rounding before them differs by rounding after them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph, Node, Slice
from recurra.ir.output_axes import Axes, restored
from recurra.ir.types import NUMPY_NAME, Type, is_floating
from recurra.ir.user_objects import HostFunction
from recurra.ops.control import Call
from recurra.ops.sampled_rows import Samples
from recurra.ops.source import Input
from recurra.reference import interpreter

MAX_EVALUATIONS = 50_000  # evaluations of an equation: a second or two
CLOSE = {"float64": 1e-9, "float32": 2e-4}  # others are compared exactly

Array = np.ndarray


@dataclass(frozen=True)
class Difference:
    """The first point at which an output is not what it was."""

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
    """The dims and axes of each output before any dim is an axis."""
    nodes = [graph[o] for o in graph.outputs]
    return tuple((n.domain.dims, ("",) * len(n.type.shape)) for n in nodes)


def answers(
    graph: Graph,
    sizes: Mapping[str, int],
    order: Sequence[tuple[str, ...]],
    axes: Sequence[Axes],
    inputs: Mapping[str, Array],
    seed: int = 3,
) -> list[Array]:
    """Every output as [*order, *shape], whatever dims of it have become `axes`."""
    with np.errstate(all="ignore"):  # padding may hold 1/0
        found = interpreter.run(stood_in(graph, sizes), sizes, inputs, seed=seed)
    every = zip(graph.outputs, order, axes, strict=True)
    return [restored(graph, dims, a)(found[o], np) for o, dims, a in every]


def made_up(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Array]:
    """A value for every input of a graph as it was written."""
    out: dict[str, Array] = {}
    for n in graph.nodes.values():
        if isinstance(n.op, Input):
            assert isinstance(n.type, Type)
            shape = (*(r.size(sizes) for r in n.domain), *n.type.sizes(sizes))
            rng = np.random.default_rng(list(n.name.encode()))
            x = rng.normal(size=shape) * 2
            out[n.name] = (x if n.type.dtype[0] == "f" else x.round()).astype(
                NUMPY_NAME[n.type.dtype]
            )
    return out


def difference(
    graph: Graph, sizes: Mapping[str, int], before: Sequence[Array], after: Sequence[Array]
) -> Difference | None:
    """The first point at which the outputs of `graph` differ, None where they agree."""
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
    finite = np.abs(left[np.isfinite(left)])
    return np.isclose(
        right, left, rtol=close, atol=close * finite.max(initial=1e-3), equal_nan=True
    )


def stood_in(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with stand-ins for the functions that it calls on the host."""
    nodes = {
        name: replace(n, op=replace(n.op, fn=HostFunction(n.op.fn.key, _stand_in(n, n.op, sizes))))
        if isinstance(n.op, Call) and not isinstance(n.op, Samples)
        else n
        for name, n in graph.nodes.items()
    }
    return replace(graph, nodes=nodes)


def _stand_in(node: Node, op: Call, sizes: Mapping[str, int]) -> Callable[..., tuple[Array, ...]]:
    """The stub treats every row alike, whichever rows are in the batch."""
    types = [Type(dtype, shape) for dtype, shape in op.results]
    seen = [a for k, a in enumerate(node.args) if k not in op.unseen]
    rows = [bool(op.batch_dims) and any(isinstance(e, Slice) for e in a.index) for a in seen]

    def call(*given: Array) -> tuple[Array, ...]:
        group, xs = given[: len(op.group)], given[len(op.group) :]
        total: Any = 0.0
        for x, of_rows in zip(map(np.asarray, xs), rows, strict=True):
            if is_floating(x.dtype):
                total = total + np.tanh(x).sum(axis=tuple(range(of_rows, x.ndim)))
        first = int(group[0]) if group else 0
        return tuple(_wave(k, total, t, sizes, first) for k, t in enumerate(types))

    return call


def _wave(index: int, total: Array, type_: Type, sizes: Mapping[str, int], group: int) -> Array:
    """Numbers of order one that depend on what a call is given; flags and counts do not."""
    shape = type_.sizes(sizes)
    ramp = np.arange(prod(shape)).reshape(shape) + group * prod(shape)
    total = np.reshape(total, np.shape(total) + (1,) * (len(shape) - np.ndim(total)))
    wave = np.sin(ramp + index + total) if type_.dtype[0] == "f" else (ramp + index) % 2
    return np.asarray(wave, NUMPY_NAME[type_.dtype])
