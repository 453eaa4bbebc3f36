"""The choice of the engine: the native one where it can be built, else Python, with a notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

from recurra.errors import RecurraError
from recurra.mapping import native
from recurra.mapping.game import Game
from recurra.mapping.order_free_placer import OrderFreePlacer
from recurra.mapping.struct_of_arrays import FlatProblem, Ints
from recurra.storage.exact_packing import Packed, Packer
from recurra.support.notices import in_one_line, tell_once

Which = Literal["auto", "native", "python"]


@dataclass(frozen=True)
class Engine:
    """An implementation of games, arrangers and packing."""

    description: str  # which engine it is, and why
    game: Callable[[FlatProblem], Game | native.NativeGame]
    arranger: Callable[[FlatProblem], OrderFreePlacer | native.NativeArranger]
    pack: Callable[  # of a problem, ranks, by load, nodes
        [FlatProblem, Ints, bool, int], tuple[Packed, list[int]]
    ]
    library: Path | None = None  # of the native engine, for other processes


def engine(which: Which = "auto") -> Engine:
    """Return the native engine, built at its first use, or the one in Python, with a notice.

    Raises BuildError if `which` is "native" and it cannot be built.
    """
    if which == "python":
        return Engine("engine: Python, as asked", Game, OrderFreePlacer, pack_in_python)
    if which == "native":
        return native_engine(native.build())
    library = _find_library()
    if isinstance(library, Path):
        return native_engine(library)
    tell_once(f"the engine is Python; the native one, far faster, cannot be built: {library}")
    return Engine("engine: Python", Game, OrderFreePlacer, pack_in_python)


@cache
def _find_library() -> Path | str:
    """Return the native engine's library, or why there is none."""
    try:
        path = native.build()
        native.load(path)
        return path
    except RecurraError as error:
        return in_one_line(error)


def native_engine(path: Path) -> Engine:
    """Return the engine of a library that `native.build` has compiled."""
    library = native.load(path)
    return Engine(
        f"engine: native, {path}",
        partial(native.NativeGame, library),
        partial(native.NativeArranger, library),
        partial(native.pack, library),
        path,
    )


def pack_in_python(
    flat: FlatProblem, ranks: Ints, by_load: bool, nodes: int
) -> tuple[Packed, list[int]]:
    """Pack the buffers of a problem; return the offsets, too."""
    columns = (x.tolist() for x in (flat.at, flat.life_end, flat.size, ranks))
    packer = Packer(len(flat.supply), flat.problem.fast_size, *columns, by_load=by_load)
    return packer.pack(nodes), packer.offset
