"""Apply the laws that always pay, merge equal equations, and drop dims that nothing mentions.

u[i<I,t<T]: f32[4] = mul(x[i], one)   →   x[i], and readers of u drop t
"""

from __future__ import annotations

from collections.abc import Mapping

from recurra.ir.graph import Graph
from recurra.transforms.canonicalize.arithmetic import ALGEBRA
from recurra.transforms.canonicalize.layout import SHAPES
from recurra.transforms.canonicalize.searches import SEARCHES
from recurra.transforms.canonicalize.unit_dims import without_unit_dims
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.permutations.gathers import unshuffle
from recurra.transforms.rewriter.pattern_rewriter import apply


def canonicalize(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with fewer and cheaper equations.

    Laws that hold for finite numbers only are listed in arithmetic.FINITE.
    """
    graph = apply(without_unit_dims(graph, sizes), (*SHAPES, *ALGEBRA, *SEARCHES), sizes)
    in_order = unshuffle(graph, sizes)
    return graph if in_order is graph else apply(in_order, (*SHAPES, *ALGEBRA, *SEARCHES), sizes)


def run_canonicalize(graph: Graph, cx: CompileContext) -> Graph:
    """Merge equal equations, fold constants, and remove dead code."""
    return canonicalize(graph, cx.sizes)


CANONICALIZE = Pass("canonicalize", run_canonicalize)
