"""Reductions over growing ranges become recurrences, and back where only the end is read.

   g[t<T] = discounted_sum(r[t:T], gamma=γ)
→  g = r + γ·n;  n = merge(0, g[t+1], when=(t == T-1, t < T-1))

   s[t<T] = sum(x[0:t+1], axes=(0,))
→  s = x + p;    p = merge(0, s[t-1], when=(t == 0, t > 0))

   y[t<T] = einsum(einsum(q, k[0:t+1]), v[0:t+1])        attention without softmax
→  y = einsum(q, s);  s = einsum(k, v) + p;  p = merge(0, s[t-1], ..)   (in `.._contraction`)

Its gradient, what later steps took of each point, is such a state that runs back (`.._adjoint`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from recurra.ir.graph import Graph, Node, Ref, index_symbols
from recurra.ir.op import LETTERS
from recurra.ir.types import Type
from recurra.ops import elementwise as el
from recurra.ops.reduction import Reduction, identity
from recurra.ops.scan import DiscountedSum
from recurra.ops.source import Const
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.recurrences.incrementalize_adjoint import lift_adjoint
from recurra.transforms.recurrences.incrementalize_contraction import lift_contraction
from recurra.transforms.recurrences.scans import Monoid, grows, scanned
from recurra.transforms.rewriter.pattern_rewriter import apply, rule
from recurra.transforms.rewriter.rewriting import Rewriting


def lift(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Quadratic work becomes linear; no subtraction is introduced, so nothing cancels."""
    return apply(graph, (lift_adjoint, lift_reduction, lift_contraction), sizes)


@rule(Reduction, DiscountedSum)
def lift_reduction(node: Node, rewriting: Rewriting) -> Node | None:
    """x[0] ∘ .. ∘ x[t] over 0:t+1 (or t:T) → x[t] ∘ a·y[t-1] (or a·y[t+1])"""
    (a,), rest, axis = node.args, (), 0
    match node.op:
        case DiscountedSum(axis=axis):
            monoid = "add"
        case Reduction(axes=axes, monoid=str(monoid)) if 0 in axes and len(a.slices) == 1:
            rest = tuple(k - 1 for k in axes if k)
        case _:
            return None
    found = grows(node, a, rewriting, axis)
    if found is None or (isinstance(node.op, DiscountedSum) and found[0].direction > 0):
        return None
    way, point = found
    if rest:
        point = rewriting.emit(replace(node.op, axes=rest), (point,), node.domain, node.op.name)
    assert isinstance(node.type, Type)
    by = Monoid(monoid, identity(monoid, node.type.dtype))
    if isinstance(node.op, DiscountedSum):
        by = replace(by, act=partial(_discounted, node, node.op.gamma, rewriting))
    return scanned(node, rewriting, by, point, way)


def _discounted(node: Node, gamma: float, rewriting: Rewriting, later: Ref) -> Ref:
    """Return γ · y[t+1]."""
    assert isinstance(node.type, Type)
    axes = LETTERS[: node.type.rank]
    by = rewriting.emit(Const(value=gamma, dtype=node.type.dtype), (), node.domain, "gamma")
    op = el.Mul(labels=f",{axes}->{axes}" if axes else "")
    return rewriting.emit(op, (by, later), node.domain, "discounted")


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether a range is read whose ends move with a dim."""
    dims = set(graph.declared)
    reads = (a for n in graph.nodes.values() for a in n.args)
    return any(index_symbols(s) & dims for a in reads for s in a.slices)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Make recurrences of sums over growing ranges."""
    return lift(graph, cx.sizes)


INCREMENTALIZE = Pass("incrementalize", run, applies)
