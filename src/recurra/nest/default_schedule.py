"""The schedule of a kernel without a search: one register tile, by the sizes alone.

One index runs in lanes, preferably one along which all tensors are contiguous or constant; one
other output index is tiled so that the tile's accumulators fill the registers. The tile is the
cheapest of all that fit, tails included. An input whose rows would evict each other from the cache
is packed, a slab at a time.
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

OFTEN = 48  # an input of which every element is read so often is worth packing
CHAIN = 8  # independent multiply-adds that hide their latency: four cycles, two a cycle


LINE, SETS, WAYS = 64, 64, 8  # of a first-level cache: bytes, and how many lines each set holds
SHORT = 2  # lines: longer rows are fetched ahead by the processor, wherever they lie
FEW = 3  # tiles that are worth a measurement


def standard(problem: NestProblem, target: VectorTarget) -> Nest:
    """Return a good first nest of a problem, such as `n/64 m/6 k m n` for a matrix product."""
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
    """Yield the nests of the few cheapest tiles, each without and with its slab packed."""
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
    """Return the input that is contiguous in the lanes and read again for other results."""
    if lanes in problem.reduced or problem.combine != "sum":
        return None
    for t in problem.inputs:
        if t.steps.get(lanes) == 1 and len(t.indices) > 1 and _reads(problem, t) >= OFTEN:
            return t
    return None


def _reads(problem: NestProblem, access: TensorAccess) -> int:
    """Count the reads of every element: the outputs that it contributes to."""
    return math.prod(problem.extents[i] for i in problem.output.indices - access.indices)


def _crowded(problem: NestProblem, access: TensorAccess, lanes: str, width: int) -> bool:
    """Return whether some set of the cache cannot hold all its lines of a slab.

    A slab is `width` points of the lanes and all reduced points. Long rows do not matter.
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
    """Return the words of a tile's nest, with lanes over this index.

    `packed` is copied in the outermost loop whose slab the loops inside read completely.
    """
    others, tiled = _tiled(problem, lanes)
    reduced = [i for i in problem.reduced if i != lanes]
    rest = [i for i in others if i != tiled]
    single = [i for i, n in problem.sizes if n == 1 and i != lanes and i not in reduced]
    width, rows = tile
    columns = [f"{lanes}/{width}"] if width < problem.extents[lanes] else []
    tiles = [f"{tiled}/{rows}"] if tiled and rows < problem.extents[tiled] else []
    if lanes in problem.reduced:
        words = [*single, *rest, *tiles, *reduced, *columns]
    else:  # one slab of columns after the other, so that it stays in the cache
        words = [*single, *columns, *rest, *tiles, *reduced]
    if packed is not None:
        read = [i for i in words if i in packed.indices and i in rest]
        at = words.index(read[-1]) + 1 if read else len(single) + len(columns)
        words.insert(at, f"[{packed.name}]")
    return [*words, *([tiled] if tiled else []), lanes]


def _tiled(problem: NestProblem, lanes: str) -> tuple[list[str], str | None]:
    """Return the other indices of the output, and the longest of them, which is tiled."""
    others = [
        i
        for i, _ in problem.sizes
        if i in problem.output.indices and i != lanes and problem.extents[i] > 1
    ]
    return others, max(reversed(others), key=lambda i: problem.extents[i], default=None)


def _transposing(problem: NestProblem, target: VectorTarget) -> Nest | None:
    """Return a nest with lanes along the output that packs an input transposed, as of `ab,cb->ac`.

    None unless exactly one input is strided along the lanes, and is read often enough.
    """
    for lanes in problem.output.indices:
        across = [t for t in problem.inputs if t.steps.get(lanes, 0) not in (0, 1)]
        if problem.output.steps.get(lanes) != 1 or problem.combine != "sum" or len(across) != 1:
            continue
        packed = across[0]
        if _reads(problem, packed) < OFTEN:
            continue
        tile = _tiles(problem, lanes, target)[0]
        nest = scheduled(problem, " ".join(_order(problem, lanes, tile, packed)))
        if _packs_fit(nest, target):
            return nest
    return None


def _in_lanes(problem: NestProblem) -> str:
    """Return the index with the fewest gathers; of several, one of the output, then the longest."""

    def cost(index: str) -> tuple[int, bool, int]:
        strides = [t.steps.get(index, 0) for t in (*problem.inputs, problem.output)]
        return (
            sum(s not in (0, 1) for s in strides),
            index not in problem.output.indices,
            -problem.extents[index],
        )

    long = [i for i, n in problem.sizes if n > 1] or [i for i, _ in problem.sizes]
    return min(long, key=cost)


def _tiles(problem: NestProblem, lanes: str, target: VectorTarget) -> list[tuple[int, int]]:
    """Return the points of both tiled indices, for all tiles that fit, the cheapest first."""
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
        if v * r + max(v + 1, SPARE) <= room  # with the operands of a row of the tile
    ]
    choices.sort(key=lambda c: _cost(vectors, c[0]) * _cost(rows, c[1]) * _load(*c))
    return [(v * wide, r) for v, r in choices]


def _cost(extent: int, step: int) -> float:
    """Return the points of whole trips per point: tails waste the rest of a trip."""
    return -(-extent // step) * step / extent


def _load(columns: int, rows: int) -> float:
    """Return instructions per multiply-add, and the stalls of too few independent chains."""
    work = columns * rows
    return max(1.0, CHAIN / work) + (columns + rows) / (2 * work)
