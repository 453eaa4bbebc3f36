"""The inputs of networks: observations as packed bits, scaled numbers, and indices of buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from recurra.mapping.game import Action, Game
from recurra.mapping.native import NativeGame
from recurra.mapping.observation import GRID, RawObservation, observe
from recurra.mapping.struct_of_arrays import FlatProblem

AHEAD, SAME = 5, 5  # observed buffers: the next ones, and the next of the same tensor
GLOBAL = 3
NUMBERS = GRID + 4 * len(Action) + GLOBAL
RELATIVE = 3  # target time, both ends of the life
AnyArray = np.ndarray | jax.Array


class ProgramFeatures(NamedTuple):
    """The fixed features of a program of N buffers; row N is for positions after the end."""

    table: AnyArray  # [N + 1, features] table 1, and the position of a buffer in its alias group
    rows: AnyArray  # [N + 1, 1 + AHEAD + SAME] a buffer, the next ones, the next of its tensor
    times: AnyArray  # [N + 1, RELATIVE] steps


class GameView(NamedTuple):
    """The observations of B games."""

    index: Any  # [B]; `tuple` has a method of this name
    grid: AnyArray  # [B, GRID² / 8] bytes of bits
    profile: AnyArray  # [B, cells / 8]
    numbers: AnyArray  # [B, NUMBERS] supply, actions, progress

    def at(self, which: np.ndarray | tuple[np.ndarray, ...]) -> GameView:
        """The observations at some indices."""
        return GameView(*(x[which] for x in self))


def program_features(flat: FlatProblem) -> ProgramFeatures:
    """Return the fixed features of a program."""
    problem, n = flat.problem, len(flat.size)
    steps, size = problem.steps, max(1, problem.fast_size)
    supply, total = max(1, int(flat.supply.sum())), max(1, problem.total)
    times = np.zeros((n + 1, RELATIVE), np.float32)
    table = np.zeros((n + 1, 12), np.float32)
    place, count = _in_group(flat)
    for i, b in enumerate(problem.buffers):
        times[i] = b.target_time, *b.live_range
        table[i] = (
            b.size / size,
            np.log2(1 + b.size) / 32,
            b.is_output,
            b.target_time / steps,
            b.tensor_id % 64 / 64,
            b.alias_id is not None,
            (b.live_range[1] - b.live_range[0]) / steps,
            np.log1p(b.demand / supply * steps),
            np.clip(b.benefit / total * n, -10, 10) / 3,
            np.cbrt(b.benefit / total),
            place[i] / 8,
            (count[i] - place[i]) / 8,
        )
    table[:, [7, 8]] = np.clip(table[:, [7, 8]], -4, 4)
    return ProgramFeatures(np.clip(table, -4, 4), _rows(flat), times)


def _in_group(flat: FlatProblem) -> tuple[list[int], list[int]]:
    """Return the position of each buffer in its alias group, and the size of the group."""
    place, count = [0] * len(flat.size), [0] * len(flat.size)
    for members in flat.problem.storages:
        if flat.grouped[flat.storage[members[0]]]:
            for k, i in enumerate(members):
                place[i], count[i] = k, len(members)
    return place, count


def _rows(flat: FlatProblem) -> NDArray[np.int32]:
    n = len(flat.size)
    rows = np.full((n + 1, 1 + AHEAD + SAME), n, np.int32)
    ahead = np.minimum(np.arange(n + 1)[:, None] + np.arange(1 + AHEAD), n)
    rows[:, : 1 + AHEAD] = ahead
    later: dict[int, list[int]] = {}
    for i in reversed(range(n)):
        same = later.setdefault(int(flat.tensor[i]), [])
        rows[i, 1 + AHEAD : 1 + AHEAD + len(same)] = same
        later[int(flat.tensor[i])] = [i, *same][:SAME]
    return rows


def observe_game(game: Game | NativeGame, cells: int) -> RawObservation:
    """Observe a game with its own engine."""
    return game.observe(cells) if isinstance(game, NativeGame) else observe(game, cells)


def view_games(games: Sequence[Game | NativeGame], moves: Sequence[int], cells: int) -> GameView:
    """Observe games of one program after so many moves each."""
    flat = games[0].flat
    n = len(flat.size)
    size, total = max(1, flat.problem.fast_size), max(1, flat.problem.total)
    most = max(1, int(flat.supply.max()))
    observed = [observe_game(g, cells) for g in games]
    numbers = np.empty((len(games), NUMBERS), np.float32)
    for row, g, x, m in zip(numbers, games, observed, moves, strict=True):
        t = int(flat.at[min(g.index, n - 1)])
        a = x.moves.astype(np.float64)
        a[:, 1:3] = np.clip((a[:, 1:3] - t) / (GRID / 2), -2, 2) * a[:, :1]
        a[:, 3] /= size
        row[:GRID] = x.supply / most
        row[GRID:-GLOBAL] = a.ravel()
        row[-GLOBAL:] = g.index / n, min(4.0, m / n), np.clip(g.reward / total, -1, 1)
    index = np.array([g.index for g in games], np.int32)
    return GameView(
        index,
        np.packbits(np.stack([x.grid.ravel() for x in observed]), axis=1),
        np.packbits(np.stack([x.profile for x in observed]), axis=1),
        numbers,
    )


def legal(views: GameView) -> AnyArray:
    """Mark the legal actions [.., 3], in arrays of NumPy or JAX."""
    numbers = views.numbers[..., GRID:-GLOBAL]
    return numbers.reshape(*numbers.shape[:-1], len(Action), 4)[..., 0] > 0.5
