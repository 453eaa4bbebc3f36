"""The cost model: nanoseconds of one core to compute an equation once, and to keep a byte.

Choices made by these estimates are printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from recurra.cost.prices import PRICES, Prices
from recurra.cost.thresholds import LAUNCH_ARRAY_NS, LAUNCH_NS, MEMORY_PRICE
from recurra.ir.graph import Graph, Node
from recurra.ir.op import Elementwise
from recurra.ir.types import AnyType, Tuple, Type
from recurra.ops.attention import Attention
from recurra.ops.contraction import Einsum
from recurra.ops.indexing import Pick
from recurra.ops.movement import Cut, Expand, Flip, Reshape, Transpose
from recurra.ops.reduction import Fold
from recurra.ops.source import Const, Value
from recurra.polyhedral.extent import longest_axis

FUSED = (Elementwise, Cut, Expand, Flip, Reshape, Transpose, Const, Value)
"""What works element by element."""


def compute_ns(
    graph: Graph, node: Node, sizes: Mapping[str, int], prices: Prices = PRICES
) -> float:
    """One point of an equation."""
    if isinstance(node.type, Tuple):
        return prices.of("foreign")
    if isinstance(node.op, Einsum):
        ins, _ = node.op.labels.split("->")
        size: dict[str, int] = {}
        for axes, a in zip(ins.split(","), node.args, strict=True):
            for c, s in zip(axes, graph.read_type(a).shape, strict=True):
                size[c] = longest_axis(s, node.domain, sizes)
        return 2.0 * prod(size.values()) / prices.flops_per_ns
    if isinstance(node.op, Attention):
        q, k = (_sizes(graph.read_type(a), node, sizes) for a in node.args[:2])
        roles = node.op.roles()
        made = prod(q) + prod(_sizes(node.type, node, sizes))
        return 2.0 * made * k[roles.k.index(roles.n)] / prices.flops_per_ns
    alone = isinstance(node.op, (Fold, Pick))  # of what is read, only what is made is touched
    read = [] if alone else [graph.read_type(a) for a in node.args]
    work = max([node.type, *read], key=lambda t: prod(_sizes(t, node, sizes)))
    return prices.of(node.op.name) * prod(_sizes(work, node, sizes))


def _sizes(type_: AnyType, node: Node, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The lengths of the axes of what an equation reads or makes, the longest of its points."""
    shape = type_.shape if isinstance(type_, Type) else ()
    return tuple(longest_axis(s, node.domain, sizes) for s in shape)


def step_ns(node: Node, prices: Prices = PRICES) -> float:
    """An equation at each step of a loop, beside its elements."""
    return prices.fused if isinstance(node.op, FUSED) else prices.statement


def fuses(node: Node, prices: Prices = PRICES) -> bool:
    """Is an equation worked on in one kernel with its readers, where it is not held?"""
    return isinstance(node.op, FUSED) and prices.fused < prices.statement


def launch_ns(arrays: int) -> float:
    """The cost of a launch beside its work."""
    return LAUNCH_NS + LAUNCH_ARRAY_NS * arrays


def keep_ns(
    node: Node, sizes: Mapping[str, int], held: float = MEMORY_PRICE, prices: Prices = PRICES
) -> float:
    """Storing one point for a later phase; `held` weighs a byte that is held."""
    if isinstance(node.type, Tuple):
        return float("inf")
    return held * prices.traffic * node.type.nbytes(sizes)
