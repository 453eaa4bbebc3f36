"""A loop that orders nothing runs over tiles; inside a tile its dim becomes an axis.

    d[t<T] = mul(c, o)                    d[tz<T//5,te<5] = mul(c, o[5*tz+te])
    G = sum(d[0:T], axes=(0,))      →     G = sum(d[0:T//5,0:5], axes=(0, 1))

Which loops, and how many points a tile has, is chosen here; `strip_mine` makes the split, and
granularity then turns te into an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf

from recurra.cost.model import compute_ns
from recurra.cost.prices import PRICES, Prices
from recurra.cost.thresholds import (
    MAX_BLOCK_LAYER_BYTES,
    MAX_TILE_VALUE_BYTES,
    MIN_BLOCK_POINTS,
    ROWS_PER_TILE,
)
from recurra.ir.expr import Sym, symbols
from recurra.ir.graph import Graph, Node, Slice
from recurra.ir.types import Type
from recurra.ops.contraction import Einsum
from recurra.ops.reduction import Reduction
from recurra.ops.source import Input
from recurra.transforms.compile_context import CompileContext, Pass, Phase
from recurra.transforms.reductions_to_accumulators import accumulate
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.strip_mine.tiled_dims import Tile, joins, own_or_joined, split_dim, tile
from recurra.transforms.vectorize.plan import as_axes, free_dims, loops


def made_over(graph: Graph, dim: str) -> list[str]:
    """The equations over a dim, but not what the caller gives."""
    every = graph.nodes.values()
    return [n.name for n in every if dim in n.domain and not isinstance(n.op, Input)]


def outer_dims(graph: Graph) -> set[str]:
    """The dims that count tiles, chunks or groups."""
    return {d.name for d in graph.dims if graph.points_of(d.name) is not None}


def tiles(
    graph: Graph,
    sizes: Mapping[str, int],
    phases: Mapping[str, Phase],
    ordered: Mapping[str, set[str]],
    batch: set[str],
    rows: int = ROWS_PER_TILE,
    enough: float = inf,
    prices: Prices = PRICES,
) -> list[Tile]:
    """The phases worth tiling: nothing in them is `ordered` along their loop, under `rows` rows.

    Nor are those whose steps take `enough` nanoseconds as they are.
    """
    groups: dict[Phase, list[str]] = {}
    for name, phase in phases.items():
        if not isinstance(graph[name].op, Input):
            groups.setdefault(phase, []).append(name)
    out: list[tuple[str, int, list[str]]] = []
    for phase, names in groups.items():
        alone = not any(p != phase and p[:-1] == phase[:-1] for p in groups)
        inner = [d for d in _shared_dims(graph, names) if d not in batch]
        if not alone or not inner or _in_tiles(graph, inner[-1], batch):
            continue
        if enough < inf and _step_ns(graph, sizes, names, batch, prices) >= enough:
            continue
        size = _tile_size(graph, sizes, inner[-1], names, ordered, batch, rows)
        out += [(inner[-1], size, names)] if size > 1 else []
    least = {d: min(size for x, size, _ in out if x == d) for d in {x for x, _, _ in out}}
    same = [(d, names) for d, size, names in out if size % least[d] == 0]
    every = {d: frozenset(n for x, names in same if x == d for n in names) for d, _ in same}
    return [
        Tile(d, least[d], members, split_dim(graph, d, least[d], sizes))
        for d, members in every.items()
        if fuel().burn("a loop → tiles", d)
    ]


def blocks(
    graph: Graph, sizes: Mapping[str, int], batch: Sequence[str], rows: int = ROWS_PER_TILE
) -> list[Tile]:
    """Innermost batch dims so long that a layer over all points of one fits no cache, in blocks.

    Samples of a minibatch are such: what is done with them is summed, block by block.
    """
    found = (_block(graph, sizes, d) for d in batch if rows)
    return [t for t in found if t and fuel().burn("a long batch → blocks", t.dim)]


def _block(graph: Graph, sizes: Mapping[str, int], dim: str) -> Tile | None:
    members = set(made_over(graph, dim))
    products = [n.type for n in map(graph.__getitem__, members) if _is_layer(graph, n, dim, sizes)]
    if any(graph[n].domain.dims[-1] != dim for n in members) or not products:
        return None
    total = _points(graph, dim, members, sizes)
    widest = max(t.nbytes(sizes) for t in products if isinstance(t, Type))
    if total * widest <= MAX_BLOCK_LAYER_BYTES or not widest:
        return None
    most = cached = MAX_BLOCK_LAYER_BYTES // widest
    largest = max(1, MAX_TILE_VALUE_BYTES // max(_nbytes(graph, n, sizes) for n in members))
    if total > largest:
        most = min(cached, largest) if cached >= MIN_BLOCK_POINTS else largest
    elif cached < MIN_BLOCK_POINTS:
        return None
    size = _largest_divisor(total, most)
    if size < min(MIN_BLOCK_POINTS, most // 2):
        return None
    return Tile(dim, size, frozenset(members), split_dim(graph, dim, size, sizes))


def _is_layer(graph: Graph, node: Node, dim: str, sizes: Mapping[str, int]) -> bool:
    """Is it a layer, and not a part of a sum over the dim?"""
    return _layer(node) and not (
        graph.readers[node.name]
        and all(joins(graph, reader, k, dim, sizes) for reader, k in graph.readers[node.name])
    )


def _layer(node: Node) -> bool:
    """Is it a product that sums: not one of each with each, which is summed over the batch?"""
    if not isinstance(node.op, Einsum):
        return False
    ins, out = node.op.parts()
    return bool(set("".join(ins)) - set(out))


def _step_ns(
    graph: Graph, sizes: Mapping[str, int], names: list[str], batch: set[str], prices: Prices
) -> float:
    """A step of a phase, the batch as a whole."""
    return sum(
        _batch(graph, sizes, n, batch) * compute_ns(graph, graph[n], sizes, prices) for n in names
    )


def _batch(graph: Graph, sizes: Mapping[str, int], name: str, batch: set[str]) -> int:
    return graph[name].domain.points(sizes, batch)


def _shared_dims(graph: Graph, names: list[str]) -> list[str]:
    domains = [graph[n].domain.dims for n in names]
    return [d for d in domains[0] if all(d in x for x in domains)]


def _in_tiles(graph: Graph, dim: str, batch: set[str]) -> bool:
    """Does a dim count tiles whose points are an axis?"""
    inner = graph.points_of(dim)
    return inner is not None and inner.name in batch


def _tile_size(
    graph: Graph,
    sizes: Mapping[str, int],
    dim: str,
    names: list[str],
    ordered: Mapping[str, set[str]],
    batch: set[str],
    rows: int,
) -> int:
    """The points of a tile of some equations; 0 where they have none."""
    members = set(names)
    total = 0 if members & ordered[dim] else _points(graph, dim, members, sizes)
    if not total:
        return 0
    have = {n: _batch(graph, sizes, n, batch) for n in names}
    widest = max(k * _nbytes(graph, n, sizes) for n, k in have.items())
    most = max(1, min(total, rows // max(have.values()), MAX_TILE_VALUE_BYTES // max(1, widest)))
    return _largest_divisor(total, most)


def _points(graph: Graph, dim: str, members: set[str], sizes: Mapping[str, int]) -> int:
    """The points of a dim that all members have, and can have in tiles; 0 if they cannot."""
    ranges = {graph[n].domain[dim] for n in members}
    if len(ranges) != 1 or not members.isdisjoint(graph.outputs):
        return 0
    (r,) = ranges
    if r.lo != 0 or r.mentions() - sizes.keys():
        return 0
    return r.size(sizes) if all(_fits(graph, n, dim, members, sizes) for n in members) else 0


def _largest_divisor(total: int, most: int) -> int:
    return max(z for z in range(1, most + 1) if total % z == 0)


def _nbytes(graph: Graph, name: str, sizes: Mapping[str, int]) -> int:
    """The bytes of a value; products of each with each, summed as they are made, take none."""
    n = graph[name]
    made = isinstance(n.type, Type) and (_layer(n) or not isinstance(n.op, Einsum))
    return n.type.nbytes(sizes) if made and isinstance(n.type, Type) else 0


def untiled(
    graph: Graph, tile: Tile, sizes: Mapping[str, int], but: Collection[str]
) -> Node | None:
    """The first of its members that cannot be tiled; how those in `but` read them is no matter."""
    members = set(tile.members)
    bad = (n for n in tile.members if not _fits(graph, n, tile.dim, members, sizes, but))
    return next((graph[n] for n in sorted(bad)), None)


def _fits(
    graph: Graph,
    name: str,
    dim: str,
    members: set[str],
    sizes: Mapping[str, int],
    but: Collection[str] = (),
) -> bool:
    """Can every read of a member, but by some, be said in tiles?"""
    n = graph[name]
    if not n.op.pure:
        return False
    for a in n.args:
        for e in a.index:
            if not isinstance(e, Slice) and dim in symbols(e) and e != Sym(dim):
                return False
            if isinstance(e, Slice) and dim in symbols(e.lo) | symbols(e.hi):
                return False
    return own_or_joined(graph, n, dim, members, sizes, but)


def read_by_points(
    graph: Graph,
    sizes: Mapping[str, int],
    tile: Tile,
    batch: Collection[str],
    offloads: Callable[[str, int], bool] | None,
) -> str | None:
    """Find an equation to offload among all that a tile reads: it has to be read point by point."""
    if offloads is None:
        return None
    for ref in (a for name in tile.members for a in graph[name].args):
        of = graph[ref.name]
        if ref.name in tile.members or tile.dim not in of.domain or len(of.domain) < 2:
            continue
        if isinstance(of.op, Input):  # what the caller gives is not offloaded
            continue
        points = of.domain.points(sizes, {tile.dim, *batch})
        if isinstance(of.type, Type) and offloads(ref.name, points * of.type.nbytes(sizes)):
            return ref.name
    return None


def has_blocks(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether a batch is so long that it is taken in blocks."""
    return bool(blocks(graph, cx.sizes, free_dims(graph, cx).batch, cx.target.rows))


def run_block(graph: Graph, cx: CompileContext) -> Graph:
    """Take batches so long that a layer over them fits no cache in blocks."""
    free = free_dims(graph, cx)
    batch, inside = list(free.batch), list(free.inside)
    for t in blocks(graph, cx.sizes, batch, cx.target.rows):
        graph = tile(graph, t)
        batch.remove(t.dim)
        inside.append(t.inner)
        cx.remark(t)
    cx.free = as_axes(graph, cx, batch, inside)
    return graph


def may_tile(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether all points of a loop are joined, and rows fill tiles at all."""
    if not cx.target.rows:
        return False
    axes, known = free_dims(graph, cx).all, cx.sizes.keys()
    return any(
        joins(graph, n, 0, r.dim, cx.sizes)
        for n in graph.nodes.values()
        if isinstance(n.op, Reduction)
        for r in graph[n.args[0].name].domain
        if r.dim not in axes and not r.mentions() - known
    )


def run_tile(graph: Graph, cx: CompileContext) -> Graph:
    """Split loops that order nothing into tiles, unless they read a point of what is offloaded."""
    free, target = free_dims(graph, cx), cx.target
    at = cx.phases(accumulate(graph, cx.sizes), free.all)
    at = {n: phase for n, phase in at.items() if n in graph.nodes}
    much = target.enough if free.last else inf
    ordered, axes = loops(graph), set(free.all)
    found = tiles(graph, cx.sizes, at, ordered, axes, target.rows, much, target.prices)
    offloaded = {t: read_by_points(graph, cx.sizes, t, free.batch, cx.offloads) for t in found}
    cx.remark(
        *(f"{t.dim}: no tiles, {name} is to be offloaded" for t, name in offloaded.items() if name)
    )
    for t in (t for t, name in offloaded.items() if name is None):
        graph = tile(graph, t)
        cx.free = free = replace(free, inside=(*free.inside, t.inner))
        cx.remark(t)
    return graph


TILE_BATCH = Pass("tile_batch", run_block, has_blocks)
TILE = Pass("tile", run_tile, may_tile)
