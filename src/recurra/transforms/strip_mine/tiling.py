"""Run an unordered loop over tiles, inside of which its dim becomes an axis.

    d[t<T] = mul(c, o)                    d[tz<T//5,te<5] = mul(c, o[5*tz+te])
    G = sum(d[0:T], axes=(0,))      →     G = sum(d[0:T//5,0:5], axes=(0, 1))

The loops and the sizes of tiles are chosen here. `tiled_dims` splits them, and `vectorize` makes te
an axis.
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
from recurra.transforms.strip_mine.tiled_dims import (
    Tile,
    joins,
    reads_own_or_reduces,
    split_dim,
    tile_dim,
)
from recurra.transforms.vectorize.plan import as_axes, free_dims, ordered_dims


def equations_over(graph: Graph, dim: str) -> list[str]:
    """Return the equations over a dim, without inputs."""
    every = graph.nodes.values()
    return [n.name for n in every if dim in n.domain and not isinstance(n.op, Input)]


def outer_dims(graph: Graph) -> set[str]:
    """Return the dims that count tiles, chunks or groups."""
    return {d.name for d in graph.dims if graph.points_of(d.name) is not None}


def tiles(
    graph: Graph,
    sizes: Mapping[str, int],
    phases: Mapping[str, Phase],
    ordered: Mapping[str, set[str]],
    batch: set[str],
    rows: int = ROWS_PER_TILE,
    untiled_step_ns: float = inf,
    prices: Prices = PRICES,
) -> list[Tile]:
    """Return the tiles, of at most `rows` rows, of phases whose loop imposes no order.

    Phases with a step of `untiled_step_ns` or more stay as they are.
    """
    groups: dict[Phase, list[str]] = {}
    for name, phase in phases.items():
        if not isinstance(graph[name].op, Input):
            groups.setdefault(phase, []).append(name)
    out: list[tuple[str, int, list[str]]] = []
    for phase, names in groups.items():
        alone = not any(p != phase and p[:-1] == phase[:-1] for p in groups)
        shared = set.intersection(*(set(graph[n].domain.dims) for n in names)) - batch
        inner = [d for d in graph[names[0]].domain.dims if d in shared]
        points = graph.points_of(inner[-1]) if inner else None
        if not alone or not inner or (points is not None and points.name in batch):
            continue
        ns = (
            n.domain.points(sizes, batch) * compute_ns(graph, n, sizes, prices)
            for n in map(graph.__getitem__, names)
        )
        if untiled_step_ns < inf and sum(ns) >= untiled_step_ns:
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
    """Return blocks of innermost batch dims over which a layer is too large for the cache.

    Samples of a minibatch are such: they are summed block by block.
    """
    found = (_block(graph, sizes, d) for d in batch if rows)
    return [t for t in found if t and fuel().burn("a long batch → blocks", t.dim)]


def _block(graph: Graph, sizes: Mapping[str, int], dim: str) -> Tile | None:
    members = set(equations_over(graph, dim))
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
    """Tell whether an equation is a layer, and not a part of a sum over the dim."""
    readers = graph.readers[node.name]
    summed = readers and all(joins(graph, reader, k, dim, sizes) for reader, k in readers)
    return _contracts(node) and not summed


def _contracts(node: Node) -> bool:
    """Tell whether an equation is a product that sums over a label, unlike an outer product."""
    if not isinstance(node.op, Einsum):
        return False
    ins, out = node.op.parts()
    return bool(set("".join(ins)) - set(out))


def _tile_size(
    graph: Graph,
    sizes: Mapping[str, int],
    dim: str,
    names: list[str],
    ordered: Mapping[str, set[str]],
    batch: set[str],
    rows: int,
) -> int:
    """The points of a tile of some equations; 0 if they cannot be tiled."""
    members = set(names)
    total = 0 if members & ordered[dim] else _points(graph, dim, members, sizes)
    if not total:
        return 0
    rows_of = {n: graph[n].domain.points(sizes, batch) for n in names}
    widest = max(k * _nbytes(graph, n, sizes) for n, k in rows_of.items())
    most = max(1, min(total, rows // max(rows_of.values()), MAX_TILE_VALUE_BYTES // max(1, widest)))
    return _largest_divisor(total, most)


def _points(graph: Graph, dim: str, members: set[str], sizes: Mapping[str, int]) -> int:
    """The number of points of a dim, if all members have the same and can be tiled; else 0."""
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
    """The bytes of a value; outer products, which are summed as they are computed, take none."""
    n = graph[name]
    stored = _contracts(n) or not isinstance(n.op, Einsum)
    return n.type.nbytes(sizes) if stored and isinstance(n.type, Type) else 0


def first_untileable(
    graph: Graph, tile: Tile, sizes: Mapping[str, int], but: Collection[str]
) -> Node | None:
    """Return the first member of a tile that cannot be tiled; readers in `but` may do anything."""
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
    """Tell whether a member, and its reads by equations not in `but`, can be tiled."""
    n = graph[name]
    if not n.op.pure:
        return False
    for a in n.args:
        for e in a.index:
            if not isinstance(e, Slice) and dim in symbols(e) and e != Sym(dim):
                return False
            if isinstance(e, Slice) and dim in symbols(e.lo) | symbols(e.hi):
                return False
    return reads_own_or_reduces(graph, n, dim, members, sizes, but)


def read_by_points(
    graph: Graph,
    sizes: Mapping[str, int],
    tile: Tile,
    batch: Collection[str],
    offloads: Callable[[str, int], bool] | None,
) -> str | None:
    """Return an equation to offload among all that a tile reads: it must be read by points."""
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
    """Tell whether a batch is so long that it is split into blocks."""
    return bool(blocks(graph, cx.sizes, free_dims(graph, cx).batch, cx.target.tile_rows))


def run_block(graph: Graph, cx: CompileContext) -> Graph:
    """Split batches over which a layer is too large for the cache into blocks."""
    free = free_dims(graph, cx)
    batch, inside = list(free.batch), list(free.inside)
    for t in blocks(graph, cx.sizes, batch, cx.target.tile_rows):
        graph = tile_dim(graph, t)
        batch.remove(t.dim)
        inside.append(t.inner)
        cx.remark(t)
    cx.free = as_axes(graph, cx, batch, inside)
    return graph


def may_tile(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether all points of a loop are reduced, and tiles have rows at all."""
    if not cx.target.tile_rows:
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
    """Split unordered loops into tiles, unless they read points of an offloaded store."""
    free, target = free_dims(graph, cx), cx.target
    phases = cx.phases(accumulate(graph, cx.sizes), free.all)
    phases = {n: phase for n, phase in phases.items() if n in graph.nodes}
    untiled_step_ns = target.untiled_step_ns if free.last else inf
    ordered, axes = ordered_dims(graph), set(free.all)
    found = tiles(
        graph, cx.sizes, phases, ordered, axes, target.tile_rows, untiled_step_ns, target.prices
    )
    offloaded = {t: read_by_points(graph, cx.sizes, t, free.batch, cx.offloads) for t in found}
    cx.remark(
        *(f"{t.dim}: no tiles, {name} is to be offloaded" for t, name in offloaded.items() if name)
    )
    for t in (t for t, name in offloaded.items() if name is None):
        graph = tile_dim(graph, t)
        cx.free = free = replace(free, inside=(*free.inside, t.inner))
        cx.remark(t)
    return graph


TILE_BATCH = Pass("tile_batch", run_block, has_blocks)
TILE = Pass("tile", run_tile, may_tile)
