"""The schedule that a kernel gets when nobody has searched: one register tile, by the sizes alone.

One index runs in lanes, preferably one along which all tensors are contiguous or constant; one
other output index is tiled so that the tile's accumulators fill the registers. The tile is the
cheapest of all that fit, tails included.
"""

from __future__ import annotations

import math

from recurra.nest.codegen import BUFFERS
from recurra.nest.loops import Nest, scheduled
from recurra.nest.problem import Access, Problem
from recurra.nest.scopes import SPARE, Scopes
from recurra.nest.target import Target

OFTEN = 48  # an input that is read so often for every result is worth a copy
CHAIN = 8  # independent multiply-adds that hide their latency: four cycles, two a cycle


def standard(p: Problem, target: Target) -> Nest:
    """A good first nest of a problem: `n/64 m/6 k m n` for a matrix product, or alike."""
    lanes = _in_lanes(p)
    if lanes in p.reduced and (found := _transposing(p, target)) is not None:
        return found
    return scheduled(p, " ".join(_order(p, lanes, target)))


def _order(p: Problem, lanes: str, target: Target, packed: Access | None = None) -> list[str]:
    """The words of a tile whose lanes run over this index; `packed` is copied as far out as can be
    without copying what the tiles after it do not read.
    """
    others = [i for i, _ in p.sizes if i in p.output.indices and i != lanes and p.extents[i] > 1]
    tiled = max(reversed(others), key=lambda i: p.extents[i], default=None)
    reduced = [i for i in p.reduced if i != lanes]
    rest = [i for i in others if i != tiled]
    alone = [i for i, n in p.sizes if n == 1 and i != lanes and i not in reduced]
    width, rows = _tile(p, lanes, tiled, target)
    columns = [f"{lanes}/{width}"] if width < p.extents[lanes] else []
    tiles = [f"{tiled}/{rows}"] if tiled and rows < p.extents[tiled] else []
    if lanes in p.reduced:
        words = [*alone, *rest, *tiles, *reduced, *columns]
    else:  # one slab of columns after the other: what only they need stays in the cache
        words = [*alone, *columns, *rest, *tiles, *reduced]
    if packed is not None:
        read = [i for i in words if i in packed.indices and i in rest]
        at = words.index(read[-1]) + 1 if read else len(alone) + len(columns)
        words.insert(at, f"[{packed.name}]")
    return [*words, *([tiled] if tiled else []), lanes]


def _transposing(p: Problem, target: Target) -> Nest | None:
    """With lanes along the result, of which one input lies across: it is copied to lie along, a
    slab at a time, if it is read often enough. As in `ab,cb->ac`.
    """
    for lanes in p.output.indices:
        across = [t for t in p.inputs if t.steps.get(lanes, 0) not in (0, 1)]
        if p.output.steps.get(lanes) != 1 or p.combine != "sum" or len(across) != 1:
            continue
        packed = across[0]
        lacking = [i for i in p.output.indices if i not in packed.indices]
        if math.prod(p.extents[i] for i in lacking) < OFTEN:
            continue
        nest = scheduled(p, " ".join(_order(p, lanes, target, packed)))
        if sum(b.size for b in Scopes(nest, target).buffers) <= BUFFERS:
            return nest
    return None


def _in_lanes(p: Problem) -> str:
    """The index whose vectors need the fewest gathers, then one of the output, then the longest."""

    def cost(index: str) -> tuple[int, bool, int]:
        apart = sum(t.steps.get(index, 0) not in (0, 1) for t in (*p.inputs, p.output))
        return apart, index not in p.output.indices, -p.extents[index]

    long = [i for i, n in p.sizes if n > 1] or [i for i, _ in p.sizes]
    return min(long, key=cost)


def _tile(p: Problem, lanes: str, tiled: str | None, target: Target) -> tuple[int, int]:
    """Points of the two indices in one tile of accumulators."""
    wide, room = target.lanes(p.dtype), target.registers
    plain = p.combine == "sum" and p.extents[lanes] % wide == 0
    if not (target.masked or plain):
        room -= 2  # for masks and blends
    vectors = -(-p.extents[lanes] // wide)
    columns = 1 if lanes in p.reduced else min(vectors, 4)  # a reduction adds vectors up
    rows = p.extents[tiled] if tiled else 1
    choices = [
        (v, r)
        for v in range(1, columns + 1)
        for r in range(1, rows + 1)
        if v * r + max(v + 1, SPARE) <= room  # the operands of a row of the tile stay, too
    ]
    v, r = min(choices, key=lambda c: _cost(vectors, c[0]) * _cost(rows, c[1]) * _load(*c))
    return v * wide, r


def _cost(extent: int, step: int) -> float:
    """Trips per point: tails do less in a trip."""
    return -(-extent // step) * step / extent


def _load(columns: int, rows: int) -> float:
    """Instructions per multiply-add, and waiting for those of a short chain."""
    work = columns * rows
    return max(1.0, CHAIN / work) + (columns + rows) / (2 * work)
