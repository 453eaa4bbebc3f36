"""Algebra that always pays, sharing of equal equations, domain reduction.

u[i<I,t<T]: f32[4] = mul(x[i], one)   →   x[i], and readers of u drop t
"""

from __future__ import annotations

from collections.abc import Mapping

from recurra.ir.graph import Graph
from recurra.transforms.canonicalize.arithmetic import ALGEBRA
from recurra.transforms.canonicalize.layout import SHAPES
from recurra.transforms.canonicalize.searches import SEARCHES
from recurra.transforms.canonicalize.unit_dims import at_one_point
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.permutations.gathers import unshuffle
from recurra.transforms.rewriter.pattern_rewriter import apply


def canonicalize(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with fewer and cheaper equations. Finite-math rules are those of algebra.FINITE."""
    graph = apply(at_one_point(graph, sizes), (*SHAPES, *ALGEBRA, *SEARCHES), sizes)
    in_order = unshuffle(graph, sizes)
    return graph if in_order is graph else apply(in_order, (*SHAPES, *ALGEBRA, *SEARCHES), sizes)


def run_canonicalize(graph: Graph, cx: CompileContext) -> Graph:
    """Share equal equations, fold constants, drop what is not needed."""
    return canonicalize(graph, cx.sizes)


CANONICALIZE = Pass("canonicalize", run_canonicalize)
