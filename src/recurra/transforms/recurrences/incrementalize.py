"""Turn reductions over growing ranges into recurrences.

   g[t<T] = discounted_sum(r[t:T], gamma=γ)
→  g = r + γ·n;  n = merge(0, g[t+1], when=(t == T-1, t < T-1))

   s[t<T] = sum(x[0:t+1], axes=(0,))
→  s = x + p;    p = merge(0, s[t-1], when=(t == 0, t > 0))

   y[t<T] = einsum(einsum(q, k[0:t+1]), v[0:t+1])        attention without softmax
→  y = einsum(q, s);  s = einsum(k, v) + p;  p = merge(0, s[t-1], ..)   (in `.._contraction`)

   e[t<T] = square(x[0:t+1])
→  s[0:t+1];  s[t<T] = square(x)                         (in `.._elementwise`)

Gradients, which sum what later steps read of each point, are states that run backward
(`.._adjoint`). Windows of a fixed length are built from blocks (`windows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from recurra.ir.graph import Graph, Node
from recurra.ops.reduction import Reduction
from recurra.ops.scan import DiscountedSum
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.recurrences.incrementalize_adjoint import lift_adjoint
from recurra.transforms.recurrences.incrementalize_contraction import lift_contraction
from recurra.transforms.recurrences.incrementalize_elementwise import lift_elementwise
from recurra.transforms.recurrences.scans import as_range_fold, discounted, grows, scan_step
from recurra.transforms.recurrences.window_doubling import split_windows
from recurra.transforms.rewriter.pattern_rewriter import apply, rule
from recurra.transforms.rewriter.rewriting import Rewriting


def lift(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Make quadratic work linear, without a subtraction, so that nothing cancels."""
    rules = (lift_elementwise(graph), lift_adjoint, lift_reduction, lift_contraction)
    return apply(graph, rules, sizes)


@rule(Reduction, DiscountedSum)
def lift_reduction(node: Node, graph: Rewriting) -> Node | None:
    """x[0] ∘ .. ∘ x[t] over 0:t+1 (or t:T) → x[t] ∘ a·y[t-1] (or a·y[t+1])"""
    fold = as_range_fold(node, graph)
    found = fold and grows(node, node.args[0], graph, fold.axis)
    if fold is None or found is None:
        return None
    way, by = found[0], fold.monoid
    if fold.gamma != 1:
        if way.direction > 0:
            return None
        by = replace(by, act=partial(discounted, node, graph, fold.gamma))
    return scan_step(node, graph, by, fold.point(graph), way)


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether a range is read."""
    return any(a.slices for n in graph.nodes.values() for a in n.args)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Turn sums over growing ranges into recurrences, and those over windows into few sums."""
    return split_windows(lift(graph, cx.sizes), cx.sizes)


INCREMENTALIZE = Pass("incrementalize", run, applies)
