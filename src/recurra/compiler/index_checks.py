"""check="bounds": every read by data tells how far its positions lie outside of the axis they read.

    y[t<T] = take(x, i)   →   stray[t<T] = i - max(min(i, last), 0), which is put out besides

A program runs as it does without the check, on any backend; what is not 0 in `stray` is refused.
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
    """One read by data, and the output that tells the last position of its axis."""

    take: Node
    last: str

    def expect_inside(
        self, stray: np.ndarray, last: np.ndarray, bounds: Mapping[str, int], starts: Starts
    ) -> None:
        """Raises DomainError if a position is outside; the points begin at `starts`, or the first.

        `stray` is [*dims, *axes of the index], `last` [*dims].
        """
        found = np.argwhere(stray)
        if not len(found):
            return
        spot = tuple(int(k) for k in found[0])
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
    """The graph that puts out, besides, how far the positions of its reads by data are outside."""
    nodes, checks = dict(graph.nodes), dict[str, IndexCheck]()
    made = _AddedChecks(nodes)
    for n in graph.nodes.values():
        if isinstance(n.op, Take):
            size = graph.read_type(n.args[0]).shape[n.op.parts()[0].index(n.op.axis)]
            last, strays = made.strays(n, size)
            checks |= {stray: IndexCheck(n, last) for stray in strays}
    outputs = (*graph.outputs, *checks, *dict.fromkeys(c.last for c in checks.values()))
    return replace(graph, nodes=nodes, outputs=outputs), checks


@dataclass
class _AddedChecks:
    """Equations that are added to those of a program."""

    nodes: dict[str, Node]

    def add(self, node: Node, op: Op, *args: Ref) -> Ref:
        graph = Graph(self.nodes, ())
        type_ = op.infer(*(graph.read_type(a) for a in args))
        name = graph.fresh("stray")
        self.nodes[name] = Node(name, op, args, node.domain, type_, node.loc)
        return Ref(name, node.domain.identity)

    def strays(self, node: Node, size: Any) -> tuple[str, Sequence[str]]:
        """The last position, and how far each is outside; of ragged axes only the extremes."""
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
        """The largest or smallest element along some axes, and 0 where they are empty."""
        for k in reversed(axes):
            shape = Graph(self.nodes, ()).read_type(ref).shape
            one = Const(value=0, dtype=type_.dtype, shape=(*shape[:k], 1, *shape[k + 1 :]))
            ref = self.add(
                node, op(axes=(k,)), self.add(node, Concat(axis=k), ref, self.add(node, one))
            )
        return ref
