"""The native engine: C++ behind a C interface, built at its first use.

It is optional: `game.py` and `order_free_placer.py` give the same answers, a thousand times slower.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.game import Action
from recurra.mapping.game_state import NOWHERE, Move
from recurra.mapping.observation import GRID, RawObservation
from recurra.mapping.order_free_placer import Rounds
from recurra.mapping.struct_of_arrays import FlatProblem, Ints
from recurra.storage.exact_packing import Packed
from recurra.storage.mapping_problem import Placement, Solution
from recurra.support import native_extension
from recurra.support.cxx_toolchain import BuildError
from recurra.support.native_extension import Extension
from recurra.support.private_files import expect_private

SOURCE = Path(__file__).parent / "engine" / "engine.cpp"
FLAGS = ("-std=c++17", "-O3")
ENGINE = Extension("mapping", "the engine of memory mapping", SOURCE, FLAGS, is_module=False)
VERSION = 5
_INT = ctypes.c_int64
_POINTER = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "recurra_mapping_version": (_INT, ()),
    "flat_new": (_POINTER, (_POINTER, _POINTER)),
    "game_new": (_POINTER, (_POINTER,)),
    "arranger_new": (_POINTER, (_POINTER,)),
    **{f"{x}_delete": (None, (_POINTER,)) for x in ("flat", "game", "arranger")},
    **{f"game_{x}": (_INT, (_POINTER,)) for x in ("index", "reward", "undo", "backup", "price")},
    **{f"arranger_{x}": (_INT, (_POINTER,)) for x in ("reward", "best", "repack")},
    "game_reset": (None, (_POINTER,)),
    "game_rewind": (None, (_POINTER, _INT)),
    "game_move": (_INT, (_POINTER, _INT, _POINTER)),
    "game_step": (_INT, (_POINTER, _INT)),
    "game_play": (_INT, (_POINTER, _POINTER)),
    "game_play_on": (_INT, (_POINTER, _POINTER)),
    "game_play_random": (_INT, (_POINTER, _POINTER, _INT, _INT)),
    "game_advance": (_INT, (_POINTER, _INT)),
    "game_observe": (None, (_POINTER, _INT, *(_POINTER,) * 4)),
    "game_moves": (None, (_POINTER, _POINTER)),
    "pack": (_INT, (_POINTER, _POINTER, _INT, _INT, _POINTER)),
    "arranger_arrange_repacking": (_INT, (_POINTER, _POINTER, _INT, _INT)),
    "arranger_improve": (_INT, (_POINTER, _INT, _INT, *(_POINTER,) * 6)),
    "arranger_moves": (None, (_POINTER, _POINTER)),
    "arranger_best_moves": (None, (_POINTER, _POINTER)),
}


def build(folder: Path | None = None) -> Path:
    """Return the library, compiled if needed. Raises the errors of `native_extension.build`."""
    return native_extension.build(ENGINE, folder)


@cache
def load(path: Path) -> ctypes.CDLL:
    """Load a library from `build`, and declare the types of its functions.

    Raises BuildError if it is another library, and NotPrivateError if other users can write it.
    """
    try:
        expect_private(path, path.parents[2])
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise BuildError(f"{path} is not a native engine", facts=str(error)) from None
    if (version := library.recurra_mapping_version()) != VERSION:
        raise BuildError(f"{path} is of version {version}", facts=f"{VERSION} is wanted")
    return library


class NativeFlat:
    """A copy of a problem's arrays in the native library."""

    def __init__(self, library: ctypes.CDLL, flat: FlatProblem) -> None:
        self.library = library
        arrays = [np.ascontiguousarray(a) for a in flat.arrays]
        pointers = (_POINTER * len(arrays))(*(a.ctypes.data for a in arrays))
        lengths = (_INT * len(arrays))(*(a.size for a in arrays))
        self.address = library.flat_new(pointers, lengths)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self.library.flat_delete(self.address)


def pack(
    library: ctypes.CDLL, flat: FlatProblem, ranks: Ints, by_load: bool, nodes: int
) -> tuple[Packed, list[int]]:
    """Pack a problem's buffers as `exact_packing.Packer.pack` does; return the offsets, too."""
    arrays = NativeFlat(library, flat)
    rank = np.ascontiguousarray(ranks, np.int64)
    assert sorted(rank.tolist()) == list(range(len(flat.size))), "ranks are a permutation"
    offsets = np.empty(len(flat.size), np.int64)
    result = library.pack(arrays.address, rank.ctypes.data, by_load, nodes, offsets.ctypes.data)
    return Packed(result), offsets.tolist()


class _NativeObject:
    """A native object, and the arrays that it points to."""

    kind = ""

    def __init__(self, library: ctypes.CDLL, flat: FlatProblem) -> None:
        self.flat, self._library = flat, library
        self._arrays = NativeFlat(library, flat)
        self._object = getattr(library, f"{self.kind}_new")(self._arrays.address)

    def __del__(self) -> None:
        if hasattr(self, "_object"):
            getattr(self._library, f"{self.kind}_delete")(self._object)

    def _placements(self, function: Callable[[int, int], None]) -> Solution:
        out = np.empty((len(self.flat.size), 4), np.int64)
        function(self._object, out.ctypes.data)
        placed, copied = np.flatnonzero(out[:, 0] != NOWHERE), out[:, 3] != 0
        columns = (*(out[placed, k].tolist() for k in range(3)), copied[placed].tolist())
        placements: list[Placement | None] = [None] * len(out)
        for i, row in zip(placed.tolist(), zip(*columns, strict=True), strict=True):
            placements[i] = Placement._make(row)
        return Solution(tuple(placements))


class NativeGame(_NativeObject):
    """The native twin of `game.Game`, which documents the methods."""

    kind = "game"

    def __init__(self, library: ctypes.CDLL, flat: FlatProblem) -> None:
        super().__init__(library, flat)
        self._move = np.empty(5, np.int64)

    def reset(self) -> None:
        self._library.game_reset(self._object)

    @property
    def index(self) -> int:
        return self._library.game_index(self._object)

    @property
    def done(self) -> bool:
        return self.index == len(self.flat.size)

    @property
    def reward(self) -> int:
        return self._library.game_reward(self._object)

    def legal(self) -> dict[Action, Move]:
        return {a: m for a in Action if (m := self.move(a)) is not None}

    def move(self, action: Action) -> Move | None:
        if not self._library.game_move(self._object, action, self._move.ctypes.data):
            return None
        offset, start, end, copied, covered = self._move.tolist()
        return Move(offset, start, end, bool(copied), bool(covered))

    def step(self, action: Action) -> int:
        assert not self.done, "the game is over"
        reward = self._library.game_step(self._object, action)
        assert reward != -(2**63), f"{Action(action).name} is not legal for buffer {self.index}"
        return reward

    def undo(self) -> int:
        assert self.index, "nothing was played"
        return self._library.game_undo(self._object)

    def rewind(self, index: int) -> None:
        assert index >= 0, "buffers are numbered from 0"
        self._library.game_rewind(self._object, index)

    def backup(self) -> int:
        assert not self.legal(), "there is something else to do"
        return self._library.game_backup(self._object)

    def price(self) -> int:
        return self._library.game_price(self._object)

    def advance(self, backed: bool = True) -> int:
        return self._library.game_advance(self._object, backed)

    def observe(self, cells: int) -> RawObservation:
        """Observe this game as `observation.observe` does."""
        grid, profile = np.empty((GRID, GRID), np.uint8), np.empty(cells, np.uint8)
        supply, moves = np.empty(GRID, np.int64), np.empty((len(Action), 4), np.int64)
        out = [x.ctypes.data for x in (grid, profile, supply, moves)]
        self._library.game_observe(self._object, cells, *out)
        return RawObservation(grid, profile, supply, moves)

    def play(self, preferences: Sequence[int] | np.ndarray) -> int:
        preferences = self._checked_preferences(preferences)  # alive until the call is over
        return self._library.game_play(self._object, preferences.ctypes.data)

    def play_on(self, preferences: Sequence[int] | np.ndarray) -> bool:
        preferences = self._checked_preferences(preferences)
        return bool(self._library.game_play_on(self._object, preferences.ctypes.data))

    def _checked_preferences(self, preferences: Sequence[int] | np.ndarray) -> NDArray[np.uint8]:
        preferences = np.ascontiguousarray(preferences, np.uint8)
        assert preferences.size == len(self.flat.size), "one preference per buffer"
        assert preferences.max() < 4, "a preference is one of four"
        return preferences

    def play_random(self, draws: Sequence[int] | np.ndarray, limit: int = 2**62) -> int:
        drawn = np.ascontiguousarray(draws, np.int64)
        assert drawn.min() >= 0, "draws are natural numbers"
        return self._library.game_play_random(self._object, drawn.ctypes.data, drawn.size, limit)

    def solution(self) -> Solution:
        return self._placements(self._library.game_moves)


class NativeArranger(_NativeObject):
    """The native twin of `order_free_placer.OrderFreePlacer`, which documents the methods."""

    kind = "arranger"

    @property
    def reward(self) -> int:
        return self._library.arranger_reward(self._object)

    @property
    def best(self) -> int:
        return self._library.arranger_best(self._object)

    def arrange(self, order: Sequence[int] | np.ndarray) -> int:
        return self.arrange_repacking(order, 0)

    def arrange_repacking(self, order: Sequence[int] | np.ndarray, most: int) -> int:
        storages = np.ascontiguousarray(order, np.int64)  # alive until the call is over
        assert 0 <= storages.min(initial=0) <= storages.max(initial=0) < len(self.flat.grouped)
        pointer, count = storages.ctypes.data, storages.size
        return self._library.arranger_arrange_repacking(self._object, pointer, count, most)

    def repack(self) -> bool:
        return bool(self._library.arranger_repack(self._object))

    def improve(self, rounds: Rounds) -> int:
        rows = (rounds.order, rounds.seed, rounds.skip, rounds.copy, rounds.short, rounds.bear)
        arrays = [np.ascontiguousarray(x, np.int64) for x in rows]
        count, width = arrays[0].shape
        assert all(len(x) == count for x in arrays)
        assert arrays[0].max() < len(self.flat.grouped)
        pointers = [x.ctypes.data for x in arrays]
        return self._library.arranger_improve(self._object, count, width, *pointers)

    def current(self) -> Solution:
        return self._placements(self._library.arranger_moves)

    def solution(self) -> Solution:
        return self._placements(self._library.arranger_best_moves)
