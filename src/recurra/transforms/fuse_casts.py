"""fuse_casts: let a product read an operand in its own type, and widen it while it multiplies.

    w: bf16[V,D] = input()                          w: bf16[V,D] = input()
    wide: f32[V,D] = cast(w)                     →  y[t<T]: f32[V] = einsum(w, x, dtype='f32', ..)
    y[t<T]: f32[V] = einsum(wide, x, ..)

A cast of a value that a loop does not change would run before the loop and be held in it: twice the
memory of a network's weights in bf16, or more. The product widens them part by part, so that only
their own bits come from memory. If what all casts hold fits the caches, they stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from math import prod

from recurra.cost.model import compute_ns, keep_ns
from recurra.cost.thresholds import MAX_WIDENED_BYTES
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.types import Type
from recurra.ops.contraction import Einsum, widens
from recurra.ops.elementwise import Cast
from recurra.transforms.compile_context import CompileContext, Pass, Phase
from recurra.transforms.rewriter.optimization_fuel import fuel


def _casts(graph: Graph) -> Iterator[Node]:
    """Yield the casts to a type of more bits that only products of that type read."""
    for n in graph.nodes.values():
        if not isinstance(n.op, Cast) or n.name in graph.outputs or n.op.labels:
            continue
        (a,), readers = n.args, graph.readers[n.name]
        narrow, wide = graph.read_type(a), n.tensor.dtype
        assert isinstance(narrow, Type)
        if narrow.dtype == wide or not widens(narrow.dtype, wide):
            continue
        # a range of the cast must be one of the operand
        same = graph.is_identity(a) and graph[a.name].domain.dims == n.domain.dims
        if all(isinstance(r.op, Einsum) and (same or not r.args[k].slices) for r, k in readers):
            yield n


def _held_bytes(graph: Graph, node: Node, cx: CompileContext, phases: Mapping[str, Phase]) -> int:
    """Count the bytes of a cast at all points that are stored when a product reads it.

    These are all points of the dims whose loops its readers are not in.
    """

    def shared(reader: Node) -> int:
        loops = (phases.get(n.name, (0,))[:-1] for n in (node, reader))
        return sum(1 for _ in takewhile(lambda x: x[0] == x[1], zip(*loops, strict=False)))

    outer = min(shared(r) for r, _ in graph.readers[node.name])
    points = prod(r.size(cx.sizes) for r in node.domain.ranges[outer:])
    return node.tensor.nbytes(cx.sizes) * points


def _narrow_operand(cast: Node, ref: Ref) -> Ref:
    """The read of what was cast, in place of a read of the cast."""
    (a,) = cast.args
    return Ref(a.name, ref.index) if ref.slices else a.at(ref.parts(cast.domain)[0])


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether products read casts from a type of fewer bits."""
    return any(True for _ in _casts(graph))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Widen operands of products in the products, if the casts would hold much memory."""
    prices, phases = cx.target.prices, cx.phases(graph, ())
    casts = [
        n
        for n in _casts(graph)
        if compute_ns(graph, n, cx.sizes, prices) < keep_ns(n, cx.sizes, cx.memory_price, prices)
    ]
    if sum(_held_bytes(graph, n, cx, phases) for n in casts) <= MAX_WIDENED_BYTES:
        return graph
    fused = {n.name: n for n in casts if fuel().burn("cast → in the products of it", n.name)}
    nodes: dict[str, Node] = {}
    for n in graph.nodes.values():
        if isinstance(n.op, Einsum) and any(a.name in fused for a in n.args):
            args = (_narrow_operand(fused[a.name], a) if a.name in fused else a for a in n.args)
            n = replace(n, op=replace(n.op, dtype=n.tensor.dtype), args=tuple(args))
        if n.name not in fused:
            nodes[n.name] = n
    if fused:
        cx.remark(f"{', '.join(fused)}: widened where products read them")
    return replace(graph, nodes=nodes)


FUSE_CASTS = Pass("fuse_casts", run, applies)
