"""The observation of a game by a learner (section 4.3.1): the Python twin of `engine/observe.h`.

One column of the memory map is one step; the target time is in the middle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.game import Action, Game
from recurra.mapping.game_state import Board, Move
from recurra.mapping.struct_of_arrays import Ints

GRID = 128  # cells of the memory map, in both directions, and of the supply profile
Bytes = NDArray[np.uint8]


class RawObservation(NamedTuple):
    """The observation of one state, unscaled."""

    grid: Bytes  # [GRID, GRID] addresses × steps, 1 where a buffer is
    profile: Bytes  # [cells] addresses at the target time
    supply: Ints  # [GRID] picoseconds that no copy uses
    moves: Ints  # [3, 4] for each action: legal, start, end, offset; zero if not legal


def observe(game: Game, cells: int) -> RawObservation:
    """Observe the state of a game; `cells`: the length of the address profile."""
    f, board = game.flat, game.board
    t = int(f.at[min(game.index, len(f.at) - 1)])
    moves = {} if game.done else game.legal()
    rows = [_row(moves.get(a)) for a in Action]
    return RawObservation(
        memory_around(board, t, GRID, GRID),
        memory_around(board, t, cells, 1)[:, 0],
        supply_around(board, t),
        np.array(rows, np.int64),
    )


def _row(move: Move | None) -> tuple[int, ...]:
    return (0, 0, 0, 0) if move is None else (1, move.start, move.end, move.offset)


def memory_around(board: Board, step: int, cells: int, steps: int) -> Bytes:
    """Return [cells, steps]: addresses × the steps around one, 1 where a buffer is."""
    grid = np.zeros((cells, steps), np.uint8)
    first, size = step - steps // 2, max(1, board.flat.problem.fast_size)
    for i, m in board.during(first, first + steps - 1).items():
        low, high = m.offset * cells, (m.offset + int(board.flat.size[i])) * cells
        left, right = max(0, m.start - first), min(steps, m.end - first + 1)
        grid[low // size : max(low // size + 1, -(-high // size)), left:right] = 1
    return grid


def supply_around(board: Board, step: int) -> Ints:
    """Return [GRID]: the supply that no copy uses, in the steps around one."""
    out = np.zeros(GRID, np.int64)
    first = step - GRID // 2
    low, high = max(0, first), min(len(board.left), first + GRID)
    out[low - first : high - first] = board.left[low:high]
    return out
