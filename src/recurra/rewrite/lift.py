"""lift: reductions over growing ranges become recurrences, and back where only the end is read.

   g[t<T] = discounted_sum(r[t:T], gamma=γ)
→  g = r + γ·n;  n = merge(0, g[t+1], when=(t == T-1, t < T-1))

   s[t<T] = sum(x[0:t+1], axes=(0,))
→  s = x + p;    p = merge(0, s[t-1], when=(t == 0, t > 0))

   y[t<T] = einsum(einsum(q, k[0:t+1]), v[0:t+1])        attention without softmax
→  y = einsum(q, s);  s = einsum(k, v) + p;  p = merge(0, s[t-1], ..)      (lift_contraction.py)

Its gradient, what later steps took of each point, is such a state that runs back (lift_adjoint.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recurra.ir.graph import Graph, Node, index_symbols
from recurra.ir.op import Op
from recurra.ir.types import Type
from recurra.ops import elementwise as el
from recurra.ops.reduction import Reduction, identity
from recurra.ops.scan import DiscountedSum
from recurra.ops.source import Const
from recurra.rewrite.compile_context import CompileContext, Pass
from recurra.rewrite.growing import grows, neighbour
from recurra.rewrite.lift_adjoint import lift_adjoint
from recurra.rewrite.lift_contraction import lift_contraction
from recurra.rewrite.rule import Rewriting, apply, rule


def lift(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Quadratic work becomes linear; no subtraction is introduced, so nothing cancels."""
    return apply(graph, (lift_discounted, lift_adjoint, lift_reduction, lift_contraction), sizes)


@rule(DiscountedSum)
def lift_discounted(n: Node, g: Rewriting) -> Node | None:
    """Σₖ γᵏ x[t+k] over t:T → x[t] + γ · y[t+1]"""
    assert isinstance(n.op, DiscountedSum)
    found = grows(n, n.args[0], g, n.op.axis)
    if found is None or found[1] > 0:
        return None
    r, direction, point = found
    assert isinstance(n.type, Type)
    after = neighbour(n, g, r, direction, identity("add", n.type.dtype))
    gamma = g.emit(Const(value=n.op.gamma, dtype=n.type.dtype), (), n.domain, "gamma")
    labels = _scalar_labels(n.type.rank)
    scaled = g.emit(el.Mul(labels=labels), (gamma, after), n.domain, "discounted")
    return replace(n, op=el.Add(), args=(point, scaled))


def _scalar_labels(rank: int) -> str:
    axes = "abcdefghijkl"[:rank]
    return f",{axes}->{axes}" if rank else ""


@rule(Reduction)
def lift_reduction(n: Node, g: Rewriting) -> Node | None:
    """x[0] ∘ .. ∘ x[t] over 0:t+1 (or t:T) → x[t] ∘ y[t-1] (or y[t+1])"""
    assert isinstance(n.op, Reduction)
    if n.op.monoid is None or 0 not in n.op.axes or len(n.args[0].slices) != 1:
        return None
    found = grows(n, n.args[0], g, 0)
    if found is None:
        return None
    r, direction, point = found
    rest = tuple(a - 1 for a in n.op.axes if a)
    part = g.emit(replace(n.op, axes=rest), (point,), n.domain, n.op.name) if rest else point
    assert isinstance(n.type, Type)
    before = neighbour(n, g, r, direction, identity(n.op.monoid, n.type.dtype))
    join: Op = Op.registry[n.op.monoid]()
    return replace(n, op=join, args=(part, before))


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether a range is read whose ends move with a dim."""
    dims = set(graph.declared)
    reads = (a for n in graph.nodes.values() for a in n.args)
    return any(index_symbols(s) & dims for a in reads for s in a.slices)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Make recurrences of sums over growing ranges."""
    return lift(graph, cx.sizes)


LIFT = Pass("lift", run, applies)
