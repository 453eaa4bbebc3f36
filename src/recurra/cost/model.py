"""The cost model: nanoseconds of one core to compute an equation once, and to store a point.

Choices by these estimates are printed as remarks.
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
"""Ops that work element by element."""


def compute_ns(
    graph: Graph, node: Node, sizes: Mapping[str, int], prices: Prices = PRICES
) -> float:
    """The cost of one point of an equation."""
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
        elements = prod(q) + prod(_sizes(node.type, node, sizes))
        return 2.0 * elements * k[roles.k.index(roles.n)] / prices.flops_per_ns
    reads_result_only = isinstance(node.op, (Fold, Pick))  # as many elements as the result has
    read = [] if reads_result_only else [graph.read_type(a) for a in node.args]
    elements = max(prod(_sizes(t, node, sizes)) for t in (node.type, *read))
    return prices.of(node.op.name) * elements


def _sizes(type_: AnyType, node: Node, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The lengths of the axes of an operand or result, the longest of all points."""
    shape = type_.shape if isinstance(type_, Type) else ()
    return tuple(longest_axis(s, node.domain, sizes) for s in shape)


def step_ns(node: Node, prices: Prices = PRICES) -> float:
    """The cost of an equation at each step of a loop, beside its elements."""
    return prices.fused if isinstance(node.op, FUSED) else prices.statement


def fuses(node: Node, prices: Prices = PRICES) -> bool:
    """Tell whether an equation that is not stored runs in one kernel with its readers."""
    return isinstance(node.op, FUSED) and prices.fused < prices.statement


def launch_ns(arrays: int) -> float:
    """The cost of a launch beside its work."""
    return LAUNCH_NS + LAUNCH_ARRAY_NS * arrays


def keep_ns(
    node: Node,
    sizes: Mapping[str, int],
    memory_price: float = MEMORY_PRICE,
    prices: Prices = PRICES,
) -> float:
    """The cost of storing one point for a later phase; `memory_price` is that of a stored byte."""
    if isinstance(node.type, Tuple):
        return float("inf")
    return memory_price * prices.traffic * node.type.nbytes(sizes)
