"""The schedule that a kernel gets when nobody has searched: one register tile, by the sizes alone.

One index runs in lanes, preferably one along which all tensors are contiguous or constant; one
other output index is tiled so that the tile's accumulators fill the registers. The tile is the
cheapest of all that fit, tails included. An input whose rows would push each other out of the cache
is copied, a slab at a time, to where they lie side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from recurra.nest.codegen import BUFFERS
from recurra.nest.loops import Nest, scheduled
from recurra.nest.problem import ITEM_BYTES, NestProblem, TensorAccess
from recurra.nest.register_scopes import SPARE, RegisterScopes
from recurra.nest.target import VectorTarget

OFTEN = 48  # an input that is read so often for every result is worth a copy
CHAIN = 8  # independent multiply-adds that hide their latency: four cycles, two a cycle


LINE, SETS, WAYS = 64, 64, 8  # of a first-level cache: bytes, and how many lines each set holds
SHORT = 2  # lines: longer rows are fetched ahead by the processor, wherever they lie
FEW = 3  # tiles that are worth a measurement


def standard(problem: NestProblem, target: VectorTarget) -> Nest:
    """A good first nest of a problem: `n/64 m/6 k m n` for a matrix product, or alike."""
    lanes = _in_lanes(problem)
    if lanes in problem.reduced and (found := _transposing(problem, target)) is not None:
        return found
    tile = _tiles(problem, lanes, target)[0]
    if (slab := _slab(problem, lanes)) is not None:
        nest = scheduled(problem, " ".join(_order(problem, lanes, tile, slab)))
        if _packs_fit(nest, target) and _crowded(problem, slab, lanes, tile[0]):
            return nest
    return scheduled(problem, " ".join(_order(problem, lanes, tile)))


def tiles(problem: NestProblem, target: VectorTarget) -> Iterator[Nest]:
    """The nests of the few cheapest tiles, each as it is and with its slabs copied."""
    lanes = _in_lanes(problem)
    slabs = (None,) if (slab := _slab(problem, lanes)) is None else (None, slab)
    for tile in _tiles(problem, lanes, target)[:FEW]:
        for packed in slabs:
            nest = scheduled(problem, " ".join(_order(problem, lanes, tile, packed)))
            if _packs_fit(nest, target):
                yield nest


def _packs_fit(nest: Nest, target: VectorTarget) -> bool:
    return sum(b.size for b in RegisterScopes(nest, target).buffers) <= BUFFERS


def _slab(problem: NestProblem, lanes: str) -> TensorAccess | None:
    """The input along which the lanes run, and which is read again for other results."""
    if lanes in problem.reduced or problem.combine != "sum":
        return None
    for t in problem.inputs:
        again = math.prod(problem.extents[i] for i in problem.output.indices if i not in t.indices)
        if t.steps.get(lanes) == 1 and len(t.indices) > 1 and again >= OFTEN:
            return t
    return None


def _crowded(problem: NestProblem, access: TensorAccess, lanes: str, width: int) -> bool:
    """Do so many lines of a slab, `width` points of the lanes and all that is reduced, fall into
    one set of the cache that they fill it? Of long rows, and of few, it does not matter.
    """
    item = ITEM_BYTES[access.dtype]
    if width * item > SHORT * LINE:
        return False
    rows = np.zeros(1, np.int64)
    for i in problem.reduced:
        if step := access.steps.get(i, 0):
            rows = (rows[:, None] + np.arange(problem.extents[i]) * step * item).reshape(-1)
    lines = (rows[:, None] + np.arange(0, width * item, LINE)) // LINE % SETS
    return int(np.bincount(lines.reshape(-1)).max()) >= WAYS


def _order(
    problem: NestProblem, lanes: str, tile: tuple[int, int], packed: TensorAccess | None = None
) -> list[str]:
    """The words of a tile whose lanes run over this index; `packed` is copied as far out as can be
    without copying what the tiles after it do not read.
    """
    others, tiled = _tiled(problem, lanes)
    reduced = [i for i in problem.reduced if i != lanes]
    rest = [i for i in others if i != tiled]
    alone = [i for i, n in problem.sizes if n == 1 and i != lanes and i not in reduced]
    width, rows = tile
    columns = [f"{lanes}/{width}"] if width < problem.extents[lanes] else []
    tiles = [f"{tiled}/{rows}"] if tiled and rows < problem.extents[tiled] else []
    if lanes in problem.reduced:
        words = [*alone, *rest, *tiles, *reduced, *columns]
    else:  # one slab of columns after the other: what only they need stays in the cache
        words = [*alone, *columns, *rest, *tiles, *reduced]
    if packed is not None:
        read = [i for i in words if i in packed.indices and i in rest]
        at = words.index(read[-1]) + 1 if read else len(alone) + len(columns)
        words.insert(at, f"[{packed.name}]")
    return [*words, *([tiled] if tiled else []), lanes]


def _tiled(problem: NestProblem, lanes: str) -> tuple[list[str], str | None]:
    """The other indices of the output, and the one of them that is tiled: the longest."""
    others = [
        i
        for i, _ in problem.sizes
        if i in problem.output.indices and i != lanes and problem.extents[i] > 1
    ]
    return others, max(reversed(others), key=lambda i: problem.extents[i], default=None)


def _transposing(problem: NestProblem, target: VectorTarget) -> Nest | None:
    """A nest with lanes along the result, of which one input lies across, as in `ab,cb->ac`.

    That input is copied to lie along, a slab at a time, if it is read often enough.
    """
    for lanes in problem.output.indices:
        across = [t for t in problem.inputs if t.steps.get(lanes, 0) not in (0, 1)]
        if problem.output.steps.get(lanes) != 1 or problem.combine != "sum" or len(across) != 1:
            continue
        packed = across[0]
        lacking = [i for i in problem.output.indices if i not in packed.indices]
        if math.prod(problem.extents[i] for i in lacking) < OFTEN:
            continue
        tile = _tiles(problem, lanes, target)[0]
        nest = scheduled(problem, " ".join(_order(problem, lanes, tile, packed)))
        if _packs_fit(nest, target):
            return nest
    return None


def _in_lanes(problem: NestProblem) -> str:
    """The index whose vectors need the fewest gathers, then one of the output, then the longest."""

    def cost(index: str) -> tuple[int, bool, int]:
        apart = sum(t.steps.get(index, 0) not in (0, 1) for t in (*problem.inputs, problem.output))
        return apart, index not in problem.output.indices, -problem.extents[index]

    long = [i for i, n in problem.sizes if n > 1] or [i for i, _ in problem.sizes]
    return min(long, key=cost)


def _tiles(problem: NestProblem, lanes: str, target: VectorTarget) -> list[tuple[int, int]]:
    """Points of the two indices in one tile of accumulators, the cheapest first."""
    _, tiled = _tiled(problem, lanes)
    wide, room = target.lanes(problem.dtype), target.registers
    plain = problem.combine == "sum" and problem.extents[lanes] % wide == 0
    if not (target.masked or plain):
        room -= 2  # for masks and blends
    vectors = -(-problem.extents[lanes] // wide)
    columns = 1 if lanes in problem.reduced else min(vectors, 4)  # a reduction adds vectors up
    rows = problem.extents[tiled] if tiled else 1
    choices = [
        (v, r)
        for v in range(1, columns + 1)
        for r in range(1, rows + 1)
        if v * r + max(v + 1, SPARE) <= room  # the operands of a row of the tile stay, too
    ]
    choices.sort(key=lambda c: _cost(vectors, c[0]) * _cost(rows, c[1]) * _load(*c))
    return [(v * wide, r) for v, r in choices]


def _cost(extent: int, step: int) -> float:
    """Trips per point: tails do less in a trip."""
    return -(-extent // step) * step / extent


def _load(columns: int, rows: int) -> float:
    """Instructions per multiply-add, and waiting for those of a short chain."""
    work = columns * rows
    return max(1.0, CHAIN / work) + (columns + rows) / (2 * work)
