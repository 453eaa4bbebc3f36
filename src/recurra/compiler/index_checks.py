"""Add the outputs of check="bounds": how far the positions of reads by data are outside an axis.

    y[t<T] = take(x, i)   →   stray[t<T] = i - max(min(i, last), 0), an additional output

A program runs as it does without the check, on any backend; nonzero elements of `stray` are errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recurra.errors import DomainError
from recurra.ir.expr import evaluate, lin, symbols
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.op import LETTERS, Op, join_labels
from recurra.ir.types import Type
from recurra.ops.elementwise import Cast, Maximum, Minimum, Sub
from recurra.ops.indexing import Take
from recurra.ops.movement import Concat
from recurra.ops.reduction import Max, Min
from recurra.ops.source import Const, Value

Starts = Mapping[str, int]  # the first point along a dim


@dataclass(frozen=True)
class IndexCheck:
    """A read by data, and the output with the last position of its axis."""

    take: Node
    last: str

    def expect_inside(
        self, stray: np.ndarray, last: np.ndarray, bounds: Mapping[str, int], starts: Starts
    ) -> None:
        """Raise DomainError if a position is outside.

        Args:
            stray: [*dims, *axes of the index].
            last: [*dims].
            starts: the first points of these arrays, if not those of the domain.
        """
        outside = np.argwhere(stray)
        if not len(outside):
            return
        spot = tuple(int(k) for k in outside[0])
        domain = self.take.domain
        env: dict[str, int] = dict(bounds)
        for r, k in zip(domain, spot, strict=False):
            env[r.dim] = k + (starts[r.dim] if r.dim in starts else evaluate(r.lo, env))
        by, size = int(stray[spot]), int(last[spot[: len(domain)]]) + 1
        at = ", ".join(f"{d}={env[d]}" for d in domain.dims)
        element = f", element {list(spot[len(domain) :])}" if spot[len(domain) :] else ""
        x, i = self.take.args
        raise DomainError(
            f"{self.take.name} takes element {size - 1 + by if by > 0 else by} of an axis of {size}"
            + (f" at {at}" if at else ""),
            facts=f"the axis of {x} is 0:{size} there, and the index is {i}{element}; "
            "without the check the nearest element is taken",
            hint="keep the index on the axis: i.clip(0, n - 1)",
            loc=self.take.loc,
        )


def with_index_checks(graph: Graph) -> tuple[Graph, dict[str, IndexCheck]]:
    """Return the graph with the outputs of the check, and a check for each of these."""
    nodes, checks = dict(graph.nodes), dict[str, IndexCheck]()
    added = _AddedChecks(nodes)
    for n in graph.nodes.values():
        if isinstance(n.op, Take):
            size = graph.read_type(n.args[0]).shape[n.op.parts()[0].index(n.op.axis)]
            last, strays = added.strays(n, size)
            checks |= {stray: IndexCheck(n, last) for stray in strays}
    outputs = (*graph.outputs, *checks, *dict.fromkeys(c.last for c in checks.values()))
    return replace(graph, nodes=nodes, outputs=outputs), checks


@dataclass
class _AddedChecks:
    """The equations that are added to a program."""

    nodes: dict[str, Node]

    def add(self, node: Node, op: Op, *args: Ref) -> Ref:
        graph = Graph(self.nodes, ())
        type_ = op.infer(*(graph.read_type(a) for a in args))
        name = graph.fresh("stray")
        self.nodes[name] = Node(name, op, args, node.domain, type_, node.loc)
        return Ref(name, node.domain.identity)

    def strays(self, node: Node, size: Any) -> tuple[str, Sequence[str]]:
        """The last position, and the distances outside; of ragged axes only the extremes."""
        i = node.args[1]
        if Graph(self.nodes, ()).read_type(i).dtype not in ("i32", "i64"):
            i = self.add(node, Cast(to="i32"), i)
        type_ = Graph(self.nodes, ()).read_type(i)
        assert isinstance(type_, Type), "positions are an array"
        axes = LETTERS[: type_.rank]
        scalar = join_labels((axes, ""), axes)
        last = self.add(node, Value(expr=lin([(size, 1), (1, -1)]), dtype=type_.dtype))
        zero = self.add(node, Const(value=0, dtype=type_.dtype))
        near = self.add(node, Minimum(labels=scalar), i, last)
        near = self.add(node, Maximum(labels=scalar), near, zero)
        stray = self.add(node, Sub(), i, near)
        ragged = [k for k, s in enumerate(type_.shape) if symbols(s) & set(node.domain.dims)]
        if not ragged:
            return last.name, [stray.name]
        return last.name, [self._extreme(node, op, stray, type_, ragged).name for op in (Max, Min)]

    def _extreme(
        self, node: Node, op: type[Max] | type[Min], ref: Ref, type_: Type, axes: Sequence[int]
    ) -> Ref:
        """The largest or smallest element along some axes, or 0 if they are empty."""
        for k in reversed(axes):
            shape = Graph(self.nodes, ()).read_type(ref).shape
            zero = Const(value=0, dtype=type_.dtype, shape=(*shape[:k], 1, *shape[k + 1 :]))
            padded = self.add(node, Concat(axis=k), ref, self.add(node, zero))
            ref = self.add(node, op(axes=(k,)), padded)
        return ref
