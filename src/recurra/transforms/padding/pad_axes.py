"""Give axes whose length changes with a dim one static length, and mask them where it matters.

    u[t<T]: f32[t+1] = exp(x[0:t+1])        u[t<T]: f32[T] = exp(x[0:t+1:pad(T)])
    y[t<T]: f32[] = sum(u, axes=(0,))   →   valid[t<T]: bool[T] = value(expr=k < t+1, bind=..)
                                            u_masked[t<T]: f32[T] = where(valid, u, fill)
                                            y[t<T]: f32[] = sum(u_masked, axes=(0,))

The valid length of an axis is the size that the program declares; the padded length is the largest
over the reader's domain (5 for t:min(t+5, T), T for 0:t+1). `rules` has a rule for each op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from recurra.errors import ShapeError
from recurra.ir.expr import Expr, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice
from recurra.ir.order import components
from recurra.ir.types import Domain, Range, Tuple, Type
from recurra.ops.control import Merge
from recurra.ops.reduction import Fold
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.padding.padded_axes import (
    FINITE,
    Fill,
    PaddedEquation,
    PaddedOperand,
    Padding,
    join,
    unused_name,
)
from recurra.transforms.padding.rules import rule_of
from recurra.transforms.padding.widen import sum_over_all
from recurra.transforms.rewriter.rewriting import Rewriting, shape_of


def pad(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with no dim in any type's shape; its outputs stay the same.

    `sizes` are used only if the largest of a length is no closed expression of bounds.
    """
    return pad_with_fills(graph, sizes)[0]


def pad_with_fills(
    graph: Graph, sizes: Mapping[str, int]
) -> tuple[Graph, Mapping[str, tuple[Fill | None, ...]]]:
    """Return the padded graph, and the fill of each axis of each equation (None: no padding)."""
    graph = graph.live()
    g, dims = Rewriting.of(graph, sizes), set(graph.declared)
    first = next(iter(graph.nodes.values()))
    p = Padding(graph, sizes, g, dims, unused_name(graph), first)
    for o in graph.outputs:
        if any(map(p.varies, shape_of(graph[o].type))):
            raise ShapeError(
                f"the output {o} has a length that changes with a dim",
                facts=f"it is {graph[o].type} over {graph[o].domain}",
                hint="output a reduction of it, or one element of it",
                loc=graph[o].loc,
            )
    for n in _order(graph, p):
        p.n, g.loc = n, n.loc
        _rebuild(p)
    order = [k for n in graph.nodes for k in (*p.extra.get(n, ()), n)]
    return Graph({k: g.nodes[k] for k in order}, graph.outputs, graph.dims).live(), p.fills


def _order(graph: Graph, padding: Padding) -> list[Node]:
    """The equations, operands first; cycles are cut where types are static, at merges if enough.

    The equations at which they are cut come last: they may read their dependents.
    """

    def is_static(name: str) -> bool:
        return not any(map(padding.varies, shape_of(graph[name].type)))

    last = {n.name for n in graph.nodes.values() if isinstance(n.op, Merge) and is_static(n.name)}
    while True:
        before = {k: [] if k in last else [a.name for a in n.args] for k, n in graph.nodes.items()}
        parts = components(graph.nodes, before.__getitem__)
        closed = [k for part in parts for k in part if len(part) > 1 or k in before[k]]
        ragged = [k for k in closed if not is_static(k)]
        if not ragged:
            break
        if len(ragged) == len(closed):
            padding.n = graph[ragged[0]]
            padding.refuse(
                "a recurrence cannot carry a length that changes with a dim", "pad it by hand"
            )
        last |= set(closed) - set(ragged)
    first = [name for part in parts for name in part if name not in last]
    return [graph[name] for name in (*first, *(k for k in graph.nodes if k in last))]


def _rebuild(padding: Padding) -> None:
    """Replace one equation by its padded form."""
    n = padding.n
    if isinstance(n.type, Tuple) and any(padding.varies(s) for t in n.type.items for s in t.shape):
        padding.refuse("the results of a call cannot have a length that changes with a dim")
    if isinstance(n.op, Merge):
        _merge(padding)
        return
    xs = tuple(_operand(padding, a) for a in n.args)
    ragged = any(map(padding.varies, shape_of(n.type)))
    if not ragged and not any(x.ragged for x in xs):
        padding.g.put(replace(n, args=tuple(x.ref for x in xs)))
        return
    rule = rule_of(type(n.op))
    if rule is None:
        padding.refuse(
            "it cannot take an axis whose length changes with a dim",
            "give the axis a static length: .cut(..), .index(..) or a reduction before it",
        )
    _put(padding, rule(padding, *xs))


def _put(padding: Padding, new: PaddedEquation) -> None:
    """Store the padded equation, the type of which must be static."""
    n = padding.n
    type_ = new.op.infer(*map(padding.g.type, new.args))
    if isinstance(type_, Tuple):  # the results of a call: they have no padding
        padding.g.put(replace(n, op=new.op, args=new.args))
        return
    assert isinstance(type_, Type)
    valid = shape_of(n.type)
    for have, want in zip(type_.shape, valid, strict=True):
        assert have == want if not padding.varies(want) else not padding.varies(have), (
            f"{n} became {type_}"
        )
    padding.g.put(replace(n, op=new.op, args=new.args, type=type_))
    fills = zip(new.fill, valid, strict=True)
    padding.lengths[n.name] = valid
    padding.fills[n.name] = tuple(f if padding.varies(s) else None for f, s in fills)


def _sliced(padding: Padding, ref: Ref) -> Ref:
    """A read whose ranges have static lengths."""
    source = padding.graph[ref.name]
    _, ranges = ref.parts(source.domain)
    for s in shape_of(source.type):
        if symbols(s) & ranges.keys():
            padding.refuse(f"the elements of {ref} have different lengths, {s}", "read one of them")

    def static(index: Index, extent: Range) -> Index:
        if not isinstance(index, Slice) or not padding.varies(index.size):
            return index
        if isinstance(padding.n.op, Fold) and index == Slice(extent.lo, extent.hi):
            return index  # a fold reads all points of a dim one by one
        return replace(index, pad=padding.static(index.size))

    pairs = zip(ref.index, source.domain, strict=True)
    return Ref(ref.name, tuple(static(e, r) for e, r in pairs))


def _operand(padding: Padding, read: Ref) -> PaddedOperand:
    """A read as an operand with padding."""
    ref = _sliced(padding, read)
    valid = shape_of(padding.graph.read_type(read))
    slices: list[Fill | None] = [
        None if not padding.varies(s.size) or padded.pad is None else FINITE if s.loose else 0.0
        for padded, s in zip(ref.slices, read.slices, strict=True)
    ]
    own = padding.fills.get(read.name) or (None,) * len(shape_of(padding.graph[read.name].type))
    x = PaddedOperand(ref, valid, (*slices, *own))
    for k, length in enumerate(valid):
        if x.fill[k] is not None and not padding.varies(length):  # x[3] of f32[t+1] is f32[4]
            x = padding.with_padded_size(x, k, length)
            x = replace(x, fill=(*x.fill[:k], None, *x.fill[k + 1 :]))
    return x


def _merge(padding: Padding) -> None:
    """Pad a merge: all branches get one size, each where it is defined, since only one is read."""
    n = padding.n
    target = tuple(map(padding.static, n.tensor.shape))
    args: list[Ref] = []
    fills: list[tuple[Fill | None, ...]] = []
    for a in n.args:
        ref, lead = _sliced(padding, a), len(a.slices)
        padded = list(ref.slices)
        for j, s in enumerate(padded):
            if padding.varies(a.slices[j].size):
                padded[j] = replace(s, pad=target[j])
        rest = iter(padded)
        ref = Ref(a.name, tuple(next(rest) if isinstance(e, Slice) else e for e in ref.index))
        ref, own = _branch(padding, ref, target[lead:])
        args.append(ref)
        fills.append((*(0.0 for _ in a.slices), *(f if f is not None else 0.0 for f in own)))
    fill = tuple(
        join(*column) if padding.varies(s) else None
        for column, s in zip(zip(*fills, strict=True), n.tensor.shape, strict=True)
    )
    padding.g.put(replace(n, args=tuple(args), type=Type(n.tensor.dtype, target)))
    padding.lengths[n.name] = n.tensor.shape
    padding.fills[n.name] = fill


def _branch(
    padding: Padding, ref: Ref, shape: tuple[Expr | int, ...]
) -> tuple[Ref, tuple[Fill | None, ...]]:
    """The read `ref`, with its fills, cut or grown to `shape` where its source is defined."""
    source = padding.g[ref.name]
    fill = padding.fills.get(ref.name) or (None,) * len(shape)
    if shape_of(source.type) == shape:
        return ref, fill
    free = [isinstance(e, Slice) or padding.varies(e) for e in ref.index]
    ranges = tuple(r for r, f in zip(source.domain, free, strict=True) if f)
    inner = tuple(r.sym if f else e for r, e, f in zip(source.domain, ref.index, free, strict=True))
    x = PaddedOperand(Ref(ref.name, inner), shape, fill)

    def fit() -> PaddedOperand:
        y = x
        for k, size in enumerate(shape):
            y = padding.with_padded_size(y, k, size)
        return y

    y = padding.outside(padding.within(Domain(ranges), fit), replace(x, ref=ref), source.domain)
    return y.ref, y.fill


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether an axis of a value or of a read has a length that changes with a dim."""
    dims = graph.declared.keys()
    sizes = (s for n in graph.nodes.values() for s in shape_of(n.type))
    counts = (e.count for n in graph.nodes.values() for a in n.args for e in a.slices)
    return any(symbols(e) & dims for e in chain(sizes, counts))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Give axes whose length changes with a dim one length, and mask them where it matters."""
    return pad(sum_over_all(graph), cx.sizes)


PAD = Pass("pad", run, applies)
