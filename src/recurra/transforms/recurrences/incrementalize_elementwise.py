"""Do elementwise work on a range once, at every point.

   y[t<T] = sum(square(x[max(t-9,0):t+1]))
→  y = sum(s[max(t-9,0):t+1]);  s[t<T] = square(x)

   y = sum(square(sub(x[5:T], z[5:T])))
→  y = sum(s[5:T]);             s[5<=t<T] = square(sub(x, z))

Not if that stores more: f32 numbers in place of bf16, or vectors in place of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from recurra.cost.thresholds import MIN_STREAMED_BYTES
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph, Node, Ref, Slice, index_symbols
from recurra.ir.op import Elementwise, join_labels
from recurra.ir.types import Domain, Range
from recurra.transforms.rewriter.pattern_rewriter import Rule, rule
from recurra.transforms.rewriter.rewriting import Rewriting
from recurra.transforms.vectorize.plan import ordered_dims


@dataclass(frozen=True)
class _AtPoint:
    """An operator at one point of the range `s` of `r.dim`, its operands' first axis.

    `nbytes` are the bytes that it reads of the range, per point.
    """

    op: Elementwise
    args: tuple[Ref, ...]
    r: Range
    s: Slice
    nbytes: int


def lift_elementwise(graph: Graph) -> Rule:
    """Return the rule for a graph, whose loops decide which ranges are worth it."""
    fixed = any(_reads_fixed_range(n, graph) for n in graph.nodes.values())
    ordered = {d for d, members in ordered_dims(graph).items() if members} if fixed else set[str]()

    @rule(Elementwise)
    def lifted(node: Node, rewriting: Rewriting) -> Ref | None:
        """f(x[0:t+1]) → y[0:t+1], y = f(x)"""
        at = _at_point(node, rewriting) if any(a.slices for a in node.args) else None
        domain = at and _with_points(node.domain, at.r, at.s, graph.declared)
        if at is None or domain is None:
            return None
        dim, rows = at.r.dim, node.domain.points(rewriting.sizes, {*node.domain.dims} - ordered)
        if dim not in node.domain and (dim not in ordered or rows * at.nbytes < MIN_STREAMED_BYTES):
            return None
        point = rewriting.emit(at.op, at.args, domain, node.name)
        if rewriting.type(point).nbytes(rewriting.sizes) > at.nbytes:
            return None
        domain = rewriting[point.name].domain
        return Ref(point.name, tuple(at.s if x.dim == dim else x.sym for x in domain))

    return lifted


def _reads_fixed_range(node: Node, graph: Graph) -> bool:
    """Tell whether an elementwise op reads a range of a dim that it is not over."""
    return isinstance(node.op, Elementwise) and any(
        isinstance(e, Slice) and r.dim not in node.domain
        for a in node.args
        for r, e in zip(graph[a.name].domain, a.index, strict=True)
    )


def _at_point(node: Node, graph: Rewriting) -> _AtPoint | None:
    """The op at a point; None if operands read several ranges, or the dim elsewhere too.

    None as well if the length of another axis depends on the point.
    """
    assert isinstance(node.op, Elementwise)
    lengths = {x for size in node.tensor.shape[1:] for x in symbols(size)}
    if lengths - graph.sizes.keys():
        return None
    ins, out = graph.labels(node)
    along = [a for labels, a in zip(ins, node.args, strict=True) if out[0] in labels]
    pairs = (zip(graph[a.name].domain, a.index, strict=True) for a in along)
    found = {next(((r, e) for r, e in x if isinstance(e, Slice)), None) for x in pairs}
    if len(found) != 1 or (first := found.pop()) is None or first[0].dim in node.op.mentions():
        return None
    r, s = first
    args, nbytes = list[Ref](), 0
    for labels, a in zip(ins, node.args, strict=True):
        point = a
        if out[0] in labels:
            k = next(k for k, e in enumerate(a.index) if isinstance(e, Slice))
            point = a.with_index(k, r.sym)
            nbytes += graph.type(point).nbytes(graph.sizes)
        mentions = sum(r.dim in index_symbols(e) for e in point.index)
        if labels.find(out[0]) > 0 or mentions != (out[0] in labels):
            return None
        args.append(point)
    labels = join_labels(tuple(x.replace(out[0], "") for x in ins), out[1:])
    return _AtPoint(replace(node.op, labels=labels), tuple(args), r, s, nbytes)


def _with_points(
    domain: Domain, extent: Range, slice_: Slice, dims: Iterable[str]
) -> Domain | None:
    """A domain with the points that a range reads, along a dim of it or one more dim."""
    if slice_.pad is not None or any(extent.dim in x.mentions() for x in domain):
        return None
    if extent.dim in domain:
        return domain.with_range(extent) if extent.dim in index_symbols(slice_) else None
    if slice_.step != 1 or index_symbols(slice_) & set(dims):
        return None
    ranges = {x.dim: x for x in domain} | {extent.dim: Range(extent.dim, slice_.hi, slice_.lo)}
    return Domain(tuple(ranges[d] for d in dims if d in ranges))
