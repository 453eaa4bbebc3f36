"""The replay buffer: pieces of games that were played, as many decisions each.

New pieces push the oldest out; demonstrations are apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from recurra.mapping.learn.network_inputs import GameView
from recurra.nest.agents.actors import State
from recurra.nest.agents.replay import ReplayBuffer

SEEN = "seen."


class ReplaySegment(NamedTuple):
    """L pieces of K decisions. Game may follow on game; the discount is zero at an end."""

    seen: GameView  # [L, K + 1, ..]
    action: np.ndarray  # [L, K]
    reward: np.ndarray  # [L, K] beside the reference game's, of all there is to gain
    discount: np.ndarray  # [L, K]
    policy: np.ndarray  # [L, K, 3] to learn
    value: np.ndarray  # [L, K + 1] what planning found


class Batch(NamedTuple):
    """B states and what followed: U actions, targets of the U + 1 states."""

    seen: GameView
    action: np.ndarray  # [B, U]
    reward: np.ndarray  # [B, U]
    policy: np.ndarray  # [B, U + 1, 3]
    value: np.ndarray  # [B, U + 1]
    weight: np.ndarray  # [B, U + 1] of the policy, zero where there is none
    alive: np.ndarray  # [B, U + 1] zero behind the end of a game or of a piece


def rows_of(pieces: ReplaySegment) -> dict[str, np.ndarray]:
    """Pieces as named arrays, for a replay buffer."""
    fields = pieces._asdict()
    seen: GameView = fields.pop("seen")
    return {**{f"{SEEN}{k}": x for k, x in seen._asdict().items()}, **fields}


def pieces_of(rows: Mapping[str, np.ndarray]) -> ReplaySegment:
    """The inverse of `rows_of`."""
    seen = {k.removeprefix(SEEN): x for k, x in rows.items() if k.startswith(SEEN)}
    return ReplaySegment(
        GameView(**seen), **{k: x for k, x in rows.items() if not k.startswith(SEEN)}
    )


class Replay:
    """One's own games, and demonstrations: a row is a piece."""

    def __init__(self, size: int, segment: int) -> None:
        self.own, self.shown = ReplayBuffer(max(1, size // segment)), ReplayBuffer(1)

    def add(self, new: ReplaySegment) -> None:
        self.own.add(rows_of(new))

    def show(self, new: ReplaySegment, most: int) -> None:
        """Adds demonstrations; the last `most` pieces of them are kept."""
        if most != self.shown.size:
            self.shown.resize(most)
        self.shown.add(rows_of(new))

    def draw(
        self, count: int, unroll: int, discount: float, part: float, random: np.random.Generator
    ) -> Batch:
        """`part` of it from demonstrations, if there are any."""
        shown = round(part * count) if len(self.own) else count
        shown = shown if len(self.shown) else 0
        drawn = [
            _drawn(buffer, some, unroll, discount, random)
            for buffer, some in ((self.shown, shown), (self.own, count - shown))
            if some and len(buffer)
        ]
        return jax.tree.map(lambda *x: np.concatenate(x), *drawn)

    def state(self) -> dict[str, object]:
        return {"own": self.own.state(), "shown": self.shown.state()}

    def restore(self, state: State) -> None:
        self.own.restore(state["own"])
        self.shown.restore(state["shown"])


def returns(pieces: ReplaySegment, discount: float) -> NDArray[np.float32]:
    """[L, K + 1] what each state was worth in the end; beyond a piece, what planning found."""
    worth = np.array(pieces.value, np.float32)
    for k in reversed(range(pieces.action.shape[1])):
        worth[:, k] = pieces.reward[:, k] + pieces.discount[:, k] * discount * worth[:, k + 1]
    return worth


def _drawn(
    buffer: ReplayBuffer, count: int, unroll: int, discount: float, random: np.random.Generator
) -> Batch:
    some = pieces_of(buffer.draw(count, random)[1])
    length = some.action.shape[1]
    start = random.integers(length, size=count)
    worth, rows = returns(some, discount), np.arange(count)
    alive = np.ones((count, unroll + 1), np.float32)
    for u in range(unroll):
        at = np.minimum(start + u, length - 1)
        alive[:, u + 1] = alive[:, u] * (some.discount[rows, at] > 0) * (start + u < length)
    states = np.minimum(start[:, None] + np.arange(unroll + 1), length)
    decisions = np.minimum(states, length - 1)
    lanewise = rows[:, None]
    return Batch(
        seen=some.seen.at((rows, start)),
        action=some.action[lanewise, decisions[:, :-1]],
        reward=some.reward[lanewise, decisions[:, :-1]],
        policy=some.policy[lanewise, decisions],
        value=worth[lanewise, states],
        weight=alive * (states < length),
        alive=alive,
    )
