"""simplify: algebra that always pays, sharing of equal equations, domain reduction.

u[i<I,t<T]: f32[4] = mul(x[i], one)   →   x[i], and readers of u drop t
"""

from __future__ import annotations

from collections.abc import Mapping

from recurra.ir.graph import Graph
from recurra.rewrite.algebra import ALGEBRA
from recurra.rewrite.compile_context import CompileContext, Pass
from recurra.rewrite.gathers import unshuffle
from recurra.rewrite.one_point import at_one_point
from recurra.rewrite.rule import apply
from recurra.rewrite.shapes import SHAPES


def simplify(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with fewer and cheaper equations. Finite-math rules are those of algebra.FINITE."""
    graph = apply(at_one_point(graph, sizes), (*SHAPES, *ALGEBRA), sizes)
    in_order = unshuffle(graph, sizes)
    return graph if in_order is graph else apply(in_order, (*SHAPES, *ALGEBRA), sizes)


def run_simplify(graph: Graph, cx: CompileContext) -> Graph:
    """Share equal equations, fold constants, drop what is not needed."""
    return simplify(graph, cx.sizes)


SIMPLIFY = Pass("simplify", run_simplify)
