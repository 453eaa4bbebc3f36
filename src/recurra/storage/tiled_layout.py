"""Layouts of stores that are read tile by tile: the place of each point, and the axes of each.

    s = einsum(q, k[8*tj:min(8*tj+8,t+1):room(8)], labels='bkd,nbkd->bkn')
    k: t: T in tiles of 8 of f32[B,K,D] as [0,1,2,place], that is [T/8, B, K, D, 8]

A product wants its operand as [batch axes, summed axes, axes of its own], so a tile lies in memory
as the product reads it. A circular store of which ranges are read is one tile, and the points that
wrap around its end are mirrored, so no range is gathered.

    s = einsum(q, k[max(t-7,0):t+1:room(8)], labels='bkd,nbkd->bkn')
    k: t: window 8, 8 of it twice of f32[B,K,D] as [0,1,2,place], that is [1, B, K, D, 16]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from recurra.ir.expr import Expr, Lin, Sym, evaluate
from recurra.ir.graph import Index, Slice
from recurra.ir.statement import StatementGraph
from recurra.ops.attention import Attention
from recurra.ops.contraction import Einsum
from recurra.schedule.dependences import Dependence
from recurra.storage.store import Store, StoredAxis


def in_tiles(
    store: Store, graph: StatementGraph, ranges: Sequence[Dependence], sizes: Mapping[str, int]
) -> Store:
    """Return the store in tiles, if every range read from it is one tile."""
    full = {a.dim: a for a in store.axes if a.kind == "full"}
    tiles = {(d, _tile(e, sizes)) for d, e in _read(store, graph, ranges)}
    if len(tiles) != 1:
        return store
    ((dim, size),) = tiles
    if size < 2 or dim not in full or full[dim].lo:
        return store
    slots = -(-full[dim].slots // size) * size
    axis = replace(full[dim], kind="tiled", tile=size, slots=slots)
    return _laid_out(store, axis, graph, ranges)


def in_mirrored_window(
    store: Store, graph: StatementGraph, ranges: Sequence[Dependence], sizes: Mapping[str, int]
) -> Store:
    """Return the store with its window mirrored, if products read it, and only in ranges.

    A range that never wraps around the end, such as chunks that start at multiples of its length,
    needs no mirror. A range of the whole window mirrors one point: XLA copies an operand that a
    product reads whole.
    """
    windows = {a.dim: a for a in store.axes if a.kind == "circular"}
    found = _read(store, graph, ranges)
    if len({d for d, _ in found}) != 1 or len(found) != len(ranges):
        return store
    dim = found[0][0]
    lengths = [evaluate(e.size, sizes) for _, e in found]
    straight = all(e.step == 1 for _, e in found)
    if dim not in windows or not straight or max(lengths) > windows[dim].slots:
        return store
    if all(_product_order(graph, r) is None for r in ranges):  # gathering a few numbers is cheaper
        return store
    slots = windows[dim].slots
    wrapping = [
        n for n, (_, e) in zip(lengths, found, strict=True) if slots % n or not _multiple(e.lo, n)
    ]
    room = max(wrapping, default=int(slots in lengths))
    axis = replace(windows[dim], kind="mirrored", tile=slots, room=room)
    return _laid_out(store, axis, graph, ranges)


def _read(
    store: Store, graph: StatementGraph, ranges: Sequence[Dependence]
) -> list[tuple[str, Slice]]:
    """The ranges read of a store, each with its dim."""
    domain = graph.arrays[store.name].domain
    return [found for r in ranges for found in r.ref.parts(domain)[1].items()]


def _laid_out(
    store: Store, axis: StoredAxis, graph: StatementGraph, ranges: Sequence[Dependence]
) -> Store:
    """The store with `axis`, and its trailing axes in the order that the first product wants."""
    orders = (x for r in ranges if (x := _product_order(graph, r)) is not None)
    order = next(orders, tuple(range(store.type.rank + 1)))
    axes = tuple(axis if a.dim == axis.dim else a for a in store.axes)
    return replace(store, axes=axes, order=order)


def _tile(slice_: Slice, sizes: Mapping[str, int]) -> int:
    """The size Z if the range is tile j of Z points, Z·j : Z·j + Z; else 0."""
    if slice_.pad is None or not slice_.loose or slice_.step != 1:
        return 0
    size = evaluate(slice_.pad, sizes)
    return size if _multiple(slice_.lo, size) else 0


def _multiple(index: Index, size: int) -> bool:
    match index:
        case Lin(terms=terms, const=c):
            return c % size == 0 and all(k % size == 0 for _, k in terms)
        case int():
            return index % size == 0
        case Sym() | Expr():
            return size == 1
        case _:
            return False


def _product_order(graph: StatementGraph, dependence: Dependence) -> tuple[int, ...] | None:
    """The order of [place, *axes] that a product of two operands wants; None for other readers.

    An attention kernel wants [.., place, elements], of keys and of values.
    """
    op = graph[dependence.sink].op
    if isinstance(op, Attention) and 1 <= dependence.k <= 2:
        roles = op.roles()
        mine = (roles.k, roles.v)[dependence.k - 1]
        at = [
            roles.batch.find(c) if c in roles.batch else len(mine) + k for k, c in enumerate(mine)
        ]
        return tuple(sorted(range(len(mine)), key=at.__getitem__))
    if not isinstance(op, Einsum) or len(graph[dependence.sink].operands) != 2:
        return None
    ins, out = op.parts()
    mine, other = ins[dependence.k], ins[1 - dependence.k]
    ranks = {c: (0 if c in other and c in out else 1 if c in other else 2) for c in mine}
    return tuple(sorted(range(len(mine)), key=lambda k: (ranks[mine[k]], other.find(mine[k]), k)))
