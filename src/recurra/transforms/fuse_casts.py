"""fuse_casts: what a product reads in more bits than it has is widened by the product.

    w: bf16[V,D] = input()                          w: bf16[V,D] = input()
    wide: f32[V,D] = cast(w)                     →  y[t<T]: f32[V] = einsum(w, x, dtype='f32', ..)
    y[t<T]: f32[V] = einsum(wide, x, ..)

A cast of what a loop does not change is made before the loop, and held in it: twice and more of the
weights of a network in bf16. The product widens them part by part, so that no more bits than they
have come from memory. What all of the casts hold is left to the caches where it fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from math import prod

from recurra.cost.model import compute_ns, keep_ns
from recurra.cost.prices import PRICES, Prices
from recurra.cost.thresholds import MAX_WIDENED_BYTES, MEMORY_PRICE
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.types import Type
from recurra.ops.contraction import Einsum, widens
from recurra.ops.elementwise import Cast
from recurra.transforms.compile_context import CompileContext, Pass, Phase
from recurra.transforms.rewriter.optimization_fuel import fuel


def fuse_casts(
    graph: Graph,
    sizes: Mapping[str, int],
    phases: Mapping[str, Phase],
    held: float = MEMORY_PRICE,
    prices: Prices = PRICES,
) -> tuple[Graph, list[str]]:
    """The graph without the casts that only products read, and what was decided."""
    casts = [n for n in _casts(graph) if _pays(graph, n, sizes, held, prices)]
    nbytes = sum(_held_bytes(graph, n, sizes, phases) for n in casts)
    if nbytes <= MAX_WIDENED_BYTES:
        return graph, []
    fused = {n.name: n for n in casts if fuel().burn("cast → in the products of it", n.name)}
    nodes = {
        n.name: _reading(graph, n, fused) if isinstance(n.op, Einsum) else n
        for n in graph.nodes.values()
        if n.name not in fused
    }
    told = [f"{', '.join(fused)}: widened where products read them"] if fused else []
    return replace(graph, nodes=nodes), told


def _casts(graph: Graph) -> Iterator[Node]:
    """The casts to a type of more bits that nothing but products of that type reads."""
    for n in graph.nodes.values():
        if not isinstance(n.op, Cast) or n.name in graph.outputs or n.op.labels:
            continue
        (a,) = n.args
        given, readers = graph.read_type(a), graph.readers[n.name]
        assert isinstance(given, Type)
        fits = given.dtype != n.tensor.dtype and widens(given.dtype, n.tensor.dtype)
        if fits and all(
            isinstance(r.op, Einsum) and _one_read(graph, n, r.args[k]) for r, k in readers
        ):
            yield n


def _one_read(graph: Graph, cast: Node, ref: Ref) -> bool:
    """Is a read of a cast one of its operand: of a point, or of a range of the same points?"""
    (of,) = cast.args
    same = graph.is_identity(of) and graph[of.name].domain.dims == cast.domain.dims
    return same or not ref.slices


def _pays(graph: Graph, node: Node, sizes: Mapping[str, int], held: float, prices: Prices) -> bool:
    """Is it cheaper to widen again, wherever it is read, than to keep what is wide?"""
    return compute_ns(graph, node, sizes, prices) < keep_ns(node, sizes, held, prices)


def _held_bytes(
    graph: Graph, node: Node, sizes: Mapping[str, int], phases: Mapping[str, Phase]
) -> int:
    """The bytes of a cast at the points that are there when a product reads it.

    These are all points of the dims whose loops its readers are not in.
    """
    mine = phases.get(node.name, (0,))[:-1]
    shared = min(_common(mine, phases.get(r.name, (0,))[:-1]) for r, _ in graph.readers[node.name])
    return node.tensor.nbytes(sizes) * prod(r.size(sizes) for r in node.domain.ranges[shared:])


def _common(first: Phase, second: Phase) -> int:
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )


def _reading(graph: Graph, node: Node, fused: Mapping[str, Node]) -> Node:
    """A product that reads what was cast."""
    if not any(a.name in fused for a in node.args):
        return node
    args = tuple(_operand(graph, fused[a.name], a) if a.name in fused else a for a in node.args)
    return replace(node, op=replace(node.op, dtype=node.tensor.dtype), args=args)  # pyright: ignore


def _operand(graph: Graph, cast: Node, ref: Ref) -> Ref:
    (of,) = cast.args
    if ref.slices:
        return Ref(of.name, ref.index)
    by = zip(cast.domain.dims, ref.index, strict=True)
    return of.at({d: e for d, e in by if not isinstance(e, Slice)})


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether products read casts from a type of fewer bits."""
    return any(True for _ in _casts(graph))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Widen what products read in more bits than it has where they read it, if that is much."""
    held = MEMORY_PRICE if cx.tuning.held is None else cx.tuning.held
    phases = cx.phases(graph, ())
    new, decided = fuse_casts(graph, cx.sizes, phases, held, cx.target.prices)
    cx.remark(*decided)
    return new


FUSE_CASTS = Pass("fuse_casts", run, applies)
