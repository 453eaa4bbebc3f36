"""Make reductions contractions, and reductions over whole loops folds that the loops stream.

    s[t<T] = sum(mul(w, x), axes=(1,))    →  s[t<T] = einsum(w, x, labels='ab,b->a')
    G[i<I] = sum(x[i,0:T], axes=(0, 1))   →  p[i<I,t<T] = sum(x, axes=(0,)); G[i<I] = fold(p[i,0:T])
    G[i<I] = sum(x[i,0:T:2], axes=(0,))   →  p[i<I,t<T] = merge(x, 0, when=(t%2 == 0, ..)); fold(p)

Axes of one step are reduced first, so that x itself need not be stored; extrema of a small x are
taken element by element, and reduced after the loop. The direction of a fold is open until it is
scheduled. An input is stored anyway: it is reduced where it is. Equal equations are not merged
here, so that copies made on purpose stay copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recurra.cost.thresholds import MAX_ACCUMULATED_BYTES
from recurra.ir.expr import Expr, all_of, compare, lin, minimum, negate, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice, full_length
from recurra.ir.op import LETTERS
from recurra.ir.types import Domain, Range
from recurra.ops.control import Merge
from recurra.ops.elementwise import Copy
from recurra.ops.reduction import Fold, Reduction, identity
from recurra.ops.source import Const, Input
from recurra.transforms.canonicalize.arithmetic import ALGEBRA
from recurra.transforms.canonicalize.layout import SHAPES
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.pattern_rewriter import apply, rule
from recurra.transforms.rewriter.rewriting import Rewriting


def accumulate(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with reductions over loops as folds, and nothing else changed."""
    return apply(graph, (stream,), sizes, share=False)


def reads_whole_ranges(node: Node, ref: Ref, source: Node, sizes: Mapping[str, int]) -> bool:
    """Tell whether a read is of whole ranges of dims that `node` lacks, at its point of others."""
    for e, r in zip(ref.index, source.domain, strict=True):
        if not isinstance(e, Slice):
            if e != r.sym:
                return False
        elif r.dim in node.domain or not (e == Slice(r.lo, r.hi) or full_length(e, r, sizes)):
            return False
    return True


@rule(Reduction)
def stream(node: Node, graph: Rewriting) -> Node | None:
    """Σ over 0:T of x → fold of Σ over the axes of one step"""
    assert isinstance(node.op, Reduction)
    (a,) = node.args
    source, rank, monoid = graph[a.name], len(a.slices), node.op.monoid
    if monoid is None or not rank or isinstance(source.op, Input):
        return None
    if not set(range(rank)) <= set(node.op.axes):
        return None
    a, conditions = _in_steps_of_one(a, source.domain)
    domain = _points_read(node, a, source.domain)
    if not reads_whole_ranges(node, a, replace(source, domain=domain), graph.sizes):
        return None
    rest, fold = (
        tuple(k - rank for k in node.op.axes if k >= rank),
        Fold(monoid_of=monoid, rank=rank),
    )
    whole = not conditions and domain == source.domain
    if rest and whole and _by_element(node.op, source, graph.sizes):
        every = graph.emit(fold, (a,), node.domain, f"{node.name}_each", whole=True)
        return replace(node, op=replace(node.op, axes=rest), args=(every,))
    part = graph.read(source.name)
    if rest or domain != source.domain:
        axes = LETTERS[: graph.type(part).rank]
        op = replace(node.op, axes=rest) if rest else Copy(labels=f"{axes}->{axes}" if axes else "")
        part = graph.emit(op, (part,), domain, f"{node.name}_part")
    if conditions:
        type_, here = graph.type(part), all_of(*conditions)
        fill = Const(value=identity(monoid, type_.dtype), dtype=type_.dtype, shape=type_.shape)
        none = graph.emit(fill, (), domain, "none")
        merge = Merge(when=(here, negate(here)))
        part = graph.emit(merge, (part, none), domain, f"{node.name}_part")
    if graph[part.name].domain != domain:
        return None
    return replace(node, op=fold, args=(replace(a, name=part.name),))


def _in_steps_of_one(ref: Ref, domain: Domain) -> tuple[Ref, list[Expr]]:
    """A read without the steps of its ranges, and the conditions of the points that these read.

    A range in steps may end behind its source, whose last points it steps over.
    """
    conditions, index = list[Expr](), list(ref.index)
    for k, (r, e) in enumerate(zip(domain, ref.index, strict=True)):
        if isinstance(e, Slice) and e.step != 1:
            conditions.append(compare("==", lin([(r.sym, 1), (e.lo, -1)]) % e.step, 0))
            index[k] = replace(e, step=1, hi=minimum(e.hi, r.hi))
    return (replace(ref, index=tuple(index)) if conditions else ref), conditions


def _by_element(op: Reduction, source: Node, sizes: Mapping[str, int]) -> bool:
    """Tell whether it is faster to fold elements than to reduce each step first, and as exact.

    Sums would round differently, and their products are contractions.
    """
    if source.type.mentions() - sizes.keys():
        return False
    small = source.tensor.nbytes(sizes) <= MAX_ACCUMULATED_BYTES
    return small and op.monoid in ("maximum", "minimum", "logical_or", "logical_and")


def _points_read(node: Node, ref: Ref, domain: Domain) -> Domain:
    """A domain without the points that ranges between bounds leave out."""
    dims = {*node.domain.dims, *domain.dims}
    return Domain(
        tuple(
            Range(r.dim, e.hi, e.lo)
            if isinstance(e, Slice) and e.pad is None and not (symbols(e.lo) | symbols(e.hi)) & dims
            else r
            for e, r in zip(ref.index, domain, strict=True)
        )
    )


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Join products and sums into contractions, and turn sums over loops into folds."""
    return apply(graph, (*SHAPES, *ALGEBRA, stream), cx.sizes, share=False)


REDUCTIONS_TO_ACCUMULATORS = Pass("reductions_to_accumulators", run)
