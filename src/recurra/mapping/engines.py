"""Which engine plays: the native one where it is built, else Python; the choice is said aloud."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recurra.mapping import native
from recurra.mapping.arrange import Arranger
from recurra.mapping.flat import Flat, Ints
from recurra.mapping.game import Game
from recurra.memory.pack import Packed, Packer

Which = Literal["auto", "native", "python"]


@dataclass(frozen=True)
class Engine:
    """Makes games and arrangers, packs; `told` says which engine it is, and why."""

    told: str
    game: Callable[[Flat], Game | native.NativeGame]
    arranger: Callable[[Flat], Arranger | native.NativeArranger]
    pack: Callable[[Flat, Ints, bool, int], tuple[Packed, list[int]]]  # ranks, by load, nodes
    library: Path | None = None  # of the native one: for other processes


def engine(which: Which = "auto") -> Engine:
    """The engine; raises `BuildError` if the native one is asked for and is not there."""
    path = native.library_path()
    if which == "python":
        return Engine("engine: Python, as asked", Game, Arranger, pack_in_python)
    if path.exists():
        return native_engine(path)
    if which == "native":
        raise native.BuildError(
            "the native engine is not built", facts=f"{path} is not there", hint="recurra map build"
        )
    why = "the native one, far faster, is not built: recurra map build"
    return Engine(f"engine: Python; {why}", Game, Arranger, pack_in_python)


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


def pack_in_python(flat: Flat, ranks: Ints, by_load: bool, nodes: int) -> tuple[Packed, list[int]]:
    """Packs the buffers of a problem; the offsets, if it can."""
    columns = (x.tolist() for x in (flat.at, flat.life_end, flat.size, ranks))
    packer = Packer(len(flat.supply), flat.problem.fast_size, *columns, by_load=by_load)
    return packer.pack(nodes), packer.offset
