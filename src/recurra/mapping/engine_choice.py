"""The choice of the engine: the native one where it can be built, else Python; it is said aloud."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from recurra.errors import RecurraError
from recurra.mapping import native
from recurra.mapping.game import Game
from recurra.mapping.order_free_placer import Arranger
from recurra.mapping.struct_of_arrays import FlatProblem, Ints
from recurra.storage.exact_packing import Packed, Packer
from recurra.support.notices import in_one_line, tell_once

Which = Literal["auto", "native", "python"]


@dataclass(frozen=True)
class Engine:
    """Makes games and arrangers, packs; `told` says which engine it is, and why."""

    told: str
    game: Callable[[FlatProblem], Game | native.NativeGame]
    arranger: Callable[[FlatProblem], Arranger | native.NativeArranger]
    pack: Callable[
        [FlatProblem, Ints, bool, int], tuple[Packed, list[int]]
    ]  # ranks, by load, nodes
    library: Path | None = None  # of the native one: for other processes


def engine(which: Which = "auto") -> Engine:
    """Return the engine: the native one, built at its first use, or Python, aloud.

    Raises BuildError if the native one is asked for and cannot be built.
    """
    if which == "python":
        return Engine("engine: Python, as asked", Game, Arranger, pack_in_python)
    if which == "native":
        return native_engine(native.build())
    found = _find_library()
    if isinstance(found, Path):
        return native_engine(found)
    tell_once(f"the engine is Python; the native one, far faster, cannot be built: {found}")
    return Engine("engine: Python", Game, Arranger, pack_in_python)


@cache
def _find_library() -> Path | str:
    """Return the native engine's library, or why there is none: a process asks once."""
    try:
        path = native.build()
        native.load(path)
        return path
    except RecurraError as error:
        return in_one_line(error)


def native_engine(path: Path) -> Engine:
    """The engine in a library that `native.build` made."""
    library = native.load(path)
    return Engine(
        f"engine: native, {path}",
        lambda flat: native.NativeGame(library, flat),
        lambda flat: native.NativeArranger(library, flat),
        lambda flat, ranks, by_load, nodes: native.pack(library, flat, ranks, by_load, nodes),
        path,
    )


def pack_in_python(
    flat: FlatProblem, ranks: Ints, by_load: bool, nodes: int
) -> tuple[Packed, list[int]]:
    """Packs the buffers of a problem; the offsets, if it can."""
    columns = (x.tolist() for x in (flat.at, flat.life_end, flat.size, ranks))
    packer = Packer(len(flat.supply), flat.problem.fast_size, *columns, by_load=by_load)
    return packer.pack(nodes), packer.offset
