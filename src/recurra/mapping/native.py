"""The native engine: C++ behind a C interface, built at its first use.

Nothing here is needed: `game.py` and `order_free_placer.py` give the same answers, slowly.
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
from recurra.mapping.observation import GRID, Sight
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
VERSION = 4
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
    "arranger_clear": (None, (_POINTER,)),
    "arranger_arrange": (_INT, (_POINTER, _POINTER, _INT)),
    "arranger_arrange_repacking": (_INT, (_POINTER, _POINTER, _INT, _INT)),
    "arranger_improve": (_INT, (_POINTER, _INT, _INT, *(_POINTER,) * 6)),
    "arranger_moves": (None, (_POINTER, _POINTER)),
    "arranger_best_moves": (None, (_POINTER, _POINTER)),
}


def build(folder: Path | None = None) -> Path:
    """Return the library; compile it if it is not there. Raises as `native_extension.build`."""
    return native_extension.build(ENGINE, folder)


@cache
def load(path: Path) -> ctypes.CDLL:
    """Return the library that `build` gives, with the types of its functions.

    Raises BuildError if it is not ours, and NotPrivateError if other users can write it.
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
    """The arrays of a problem, on the native side."""

    def __init__(self, library: ctypes.CDLL, flat: FlatProblem) -> None:
        self.library = library
        arrays = [np.ascontiguousarray(a) for a in flat.arrays]
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        lengths = (ctypes.c_int64 * len(arrays))(*(a.size for a in arrays))
        self.address = library.flat_new(pointers, lengths)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self.library.flat_delete(self.address)


def pack(
    library: ctypes.CDLL, flat: FlatProblem, ranks: Ints, by_load: bool, nodes: int
) -> tuple[Packed, list[int]]:
    """`pack.Packer.pack` of a problem's buffers, and the offsets."""
    there = NativeFlat(library, flat)
    rank = np.ascontiguousarray(ranks, np.int64)
    assert sorted(rank.tolist()) == list(range(len(flat.size))), "ranks are a permutation"
    offsets = np.empty(len(flat.size), np.int64)
    found = library.pack(there.address, rank.ctypes.data, by_load, nodes, offsets.ctypes.data)
    return Packed(found), offsets.tolist()


class _Owner:
    """A native object and the arrays that it looks at."""

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
        found: list[Placement | None] = [None] * len(out)
        for i, row in zip(placed.tolist(), zip(*columns, strict=True), strict=True):
            found[i] = Placement._make(row)
        return Solution(tuple(found))


class NativeGame(_Owner):
    """`game.Game`, at a thousand times its speed."""

    kind = "game"

    def __init__(self, library: ctypes.CDLL, flat: FlatProblem) -> None:
        super().__init__(library, flat)
        self._move = np.empty(5, np.int64)

    def reset(self) -> None:
        """The first buffer, nothing placed, no group forced out."""
        self._library.game_reset(self._object)

    @property
    def index(self) -> int:
        return self._library.game_index(self._object)

    @property
    def done(self) -> bool:
        return self.index == len(self.flat.size)

    @property
    def reward(self) -> int:
        """Picoseconds gained so far."""
        return self._library.game_reward(self._object)

    def legal(self) -> dict[Action, Move]:
        """The legal actions for the current buffer, and where each would place it."""
        return {a: m for a in Action if (m := self.move(a)) is not None}

    def move(self, action: Action) -> Move | None:
        """The move of an action on the current buffer; None if it is not legal."""
        if not self._library.game_move(self._object, action, self._move.ctypes.data):
            return None
        offset, start, end, copied, covered = self._move.tolist()
        return Move(offset, start, end, bool(copied), bool(covered))

    def step(self, action: Action) -> int:
        """Plays a legal action; its reward in picoseconds."""
        assert not self.done, "the game is over"
        reward = self._library.game_step(self._object, action)
        assert reward != -(2**63), f"{Action(action).name} is not legal for buffer {self.index}"
        return reward

    def undo(self) -> int:
        """Takes the last action back; the reward it had brought."""
        assert self.index, "nothing was played"
        return self._library.game_undo(self._object)

    def rewind(self, index: int) -> None:
        """Takes actions back until buffer `index` is the current one."""
        assert index >= 0, "buffers are numbered from 0"
        self._library.game_rewind(self._object, index)

    def backup(self) -> int:
        """Drop-backup, from a state without a legal action; the number of actions taken back."""
        assert not self.legal(), "there is something else to do"
        return self._library.game_backup(self._object)

    def price(self) -> int:
        """The loss that Drop-backup would take back from here, in picoseconds."""
        return self._library.game_price(self._object)

    def advance(self, backed: bool = True) -> int:
        """`game.Game.advance`."""
        return self._library.game_advance(self._object, backed)

    def observe(self, cells: int) -> Sight:
        """`observation.observe`, of this game."""
        grid, profile = np.empty((GRID, GRID), np.uint8), np.empty(cells, np.uint8)
        supply, moves = np.empty(GRID, np.int64), np.empty((len(Action), 4), np.int64)
        out = [x.ctypes.data for x in (grid, profile, supply, moves)]
        self._library.game_observe(self._object, cells, *out)
        return Sight(grid, profile, supply, moves)

    def play(self, preferences: Sequence[int] | np.ndarray) -> int:
        """Plays on to the end, backed up: the first legal action of each buffer's preference."""
        wishes = self._wishes(preferences)  # alive until the call is over
        return self._library.game_play(self._object, wishes.ctypes.data)

    def play_on(self, preferences: Sequence[int] | np.ndarray) -> bool:
        """Plays until the end, or until no action is legal; is it the end?"""
        wishes = self._wishes(preferences)
        return bool(self._library.game_play_on(self._object, wishes.ctypes.data))

    def _wishes(self, preferences: Sequence[int] | np.ndarray) -> NDArray[np.uint8]:
        wishes = np.ascontiguousarray(preferences, np.uint8)
        assert wishes.size == len(self.flat.size), "one wish per buffer"
        assert wishes.max() < 4, "a wish is one of four"
        return wishes

    def play_random(self, draws: Sequence[int] | np.ndarray, limit: int = 2**62) -> int:
        """Plays at most `limit` steps, backed up: the k-th takes legal action draws[k] mod n."""
        drawn = np.ascontiguousarray(draws, np.int64)
        assert drawn.min() >= 0, "draws are natural numbers"
        return self._library.game_play_random(self._object, drawn.ctypes.data, drawn.size, limit)

    def solution(self) -> Solution:
        """The placements so far; all other buffers are in slow memory."""
        return self._placements(self._library.game_moves)


class NativeArranger(_Owner):
    """`arrange.Arranger`, at a thousand times its speed."""

    kind = "arranger"

    def clear(self) -> None:
        """Everything in slow memory; the best is kept."""
        self._library.arranger_clear(self._object)

    @property
    def reward(self) -> int:
        """Picoseconds gained by what is placed now."""
        return self._library.arranger_reward(self._object)

    @property
    def best(self) -> int:
        """The largest reward seen."""
        return self._library.arranger_best(self._object)

    def arrange(self, order: Sequence[int] | np.ndarray) -> int:
        """Clears, places storages in this order, and gives the reward."""
        given = self._storages(order)  # alive until the call is over
        return self._library.arranger_arrange(self._object, given.ctypes.data, given.size)

    def arrange_repacking(self, order: Sequence[int] | np.ndarray, most: int) -> int:
        """`arrange.Arranger.arrange_repacking`."""
        given = self._storages(order)
        at, count = given.ctypes.data, given.size
        return self._library.arranger_arrange_repacking(self._object, at, count, most)

    def repack(self) -> bool:
        """`arrange.Arranger.repack`."""
        return bool(self._library.arranger_repack(self._object))

    def _storages(self, order: Sequence[int] | np.ndarray) -> Ints:
        given = np.ascontiguousarray(order, np.int64)
        assert 0 <= given.min(initial=0) <= given.max(initial=0) < len(self.flat.grouped)
        return given

    def improve(self, rounds: Rounds) -> int:
        """`arrange.Arranger.improve`; the number of rounds that were kept."""
        rows = (rounds.order, rounds.seed, rounds.skip, rounds.copy, rounds.short, rounds.bear)
        given = [np.ascontiguousarray(x, np.int64) for x in rows]
        count, width = given[0].shape
        assert all(len(x) == count for x in given)
        assert given[0].max() < len(self.flat.grouped)
        pointers = [x.ctypes.data for x in given]
        return self._library.arranger_improve(self._object, count, width, *pointers)

    def current(self) -> Solution:
        """The current placements."""
        return self._placements(self._library.arranger_moves)

    def solution(self) -> Solution:
        """The best seen."""
        return self._placements(self._library.arranger_best_moves)
