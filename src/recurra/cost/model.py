"""What an equation costs to compute once, and a byte to keep, in nanoseconds of one core.

Constants are those of a recent x86-64 core under XLA; choices made by them are printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from recurra.ir.expr import evaluate
from recurra.ir.graph import Graph, Node
from recurra.ir.types import Tuple
from recurra.ops.attention import Attention
from recurra.ops.contraction import Einsum
from recurra.ops.reduction import Fold

FLOPS_PER_NS = 40.0  # small matrix products
TRAFFIC_NS_PER_BYTE = 0.32  # one write and one read of a store that does not fit the cache
HELD = 2.0  # a byte that is held is worth this many times its traffic
STATEMENT_NS = 20.0  # of any equation, whatever its size
PLAIN, TRANSCENDENTAL, SCAN, DRAW, SORT, FOREIGN = (
    0.05,
    0.25,
    1.0,
    5.0,
    20.0,
    50.0,
)  # ns per element

_PER_ELEMENT = {
    "tanh": TRANSCENDENTAL,
    "exp": TRANSCENDENTAL,
    "log": TRANSCENDENTAL,
    "sin": TRANSCENDENTAL,
    "cos": TRANSCENDENTAL,
    "sigmoid": TRANSCENDENTAL,
    "pow": 4 * TRANSCENDENTAL,
    "softmax": SCAN,
    "log_softmax": SCAN,
    "cumsum": SCAN,
    "take": SCAN,
    "argsort": SORT,
    "uniform": DRAW,
    "permutation": 6 * DRAW,
    "foreign": FOREIGN,
}


def compute_ns(graph: Graph, node: Node, sizes: Mapping[str, int]) -> float:
    """One point of an equation."""
    if isinstance(node.type, Tuple):
        return FOREIGN
    if isinstance(node.op, Einsum):
        ins, _ = node.op.labels.split("->")
        size: dict[str, int] = {}
        for axes, a in zip(ins.split(","), node.args, strict=True):
            for c, s in zip(axes, graph.read_type(a).shape, strict=True):
                size[c] = evaluate(s, sizes)
        return 2.0 * prod(size.values()) / FLOPS_PER_NS
    if isinstance(node.op, Attention):
        q, k = (_sizes(graph.read_type(a), sizes) for a in node.args[:2])
        roles = node.op.roles()
        made = prod(q) + prod(_sizes(node.type, sizes))
        return 2.0 * made * k[roles.k.index(roles.n)] / FLOPS_PER_NS
    read = [] if isinstance(node.op, Fold) else [graph.read_type(a) for a in node.args]
    work = max([node.type, *read], key=lambda t: prod(_sizes(t, sizes)))
    return _PER_ELEMENT.get(node.op.name, PLAIN) * prod(_sizes(work, sizes))


def _sizes(t: object, sizes: Mapping[str, int]) -> tuple[int, ...]:
    shape: tuple[object, ...] = getattr(t, "shape", ())
    return tuple(evaluate(s, sizes) for s in shape)


def keep_ns(node: Node, sizes: Mapping[str, int], held: float = HELD) -> float:
    """Storing one point for a later phase; `held` weighs a byte that is held."""
    if isinstance(node.type, Tuple):
        return float("inf")
    return held * TRAFFIC_NS_PER_BYTE * node.type.nbytes(sizes)
