"""The replay buffer: segments of games, with equally many decisions each.

New segments replace the oldest ones; demonstrations are kept separately.
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

SEEN = "seen."  # prefix of the views' names in a checkpoint


class ReplaySegment(NamedTuple):
    """L segments of K decisions, across games; the discount is zero at the end of a game."""

    views: GameView  # [L, K + 1, ..]
    action: np.ndarray  # [L, K]
    reward: np.ndarray  # [L, K] relative to the reference game, as shares of all there is to gain
    discount: np.ndarray  # [L, K]
    policy: np.ndarray  # [L, K, 3] to learn
    value: np.ndarray  # [L, K + 1] by planning


class Batch(NamedTuple):
    """B states, the next U actions, and the targets of the U + 1 states."""

    views: GameView
    action: np.ndarray  # [B, U]
    reward: np.ndarray  # [B, U]
    policy: np.ndarray  # [B, U + 1, 3]
    value: np.ndarray  # [B, U + 1]
    weight: np.ndarray  # [B, U + 1] of the policy, zero if there is none
    alive: np.ndarray  # [B, U + 1] zero after the end of a game or of a segment


def rows_of(segments: ReplaySegment) -> dict[str, np.ndarray]:
    """Return segments as named arrays, for a replay buffer."""
    fields = segments._asdict()
    views: GameView = fields.pop("views")
    return {**{f"{SEEN}{k}": x for k, x in views._asdict().items()}, **fields}


def segments_of(rows: Mapping[str, np.ndarray]) -> ReplaySegment:
    """Return the segments of such named arrays: the inverse of `rows_of`."""
    views = {k.removeprefix(SEEN): x for k, x in rows.items() if k.startswith(SEEN)}
    return ReplaySegment(
        GameView(**views), **{k: x for k, x in rows.items() if not k.startswith(SEEN)}
    )


class Replay:
    """The agent's own games, and demonstrations; a row is a segment."""

    def __init__(self, size: int, segment: int) -> None:
        self.own, self.demonstrations = ReplayBuffer(max(1, size // segment)), ReplayBuffer(1)

    def add(self, new: ReplaySegment) -> None:
        self.own.add(rows_of(new))

    def add_demonstrations(self, new: ReplaySegment, most: int) -> None:
        """Add demonstrations, of which the last `most` segments are kept."""
        if most != self.demonstrations.size:
            self.demonstrations.resize(most)
        self.demonstrations.add(rows_of(new))

    def draw(
        self, count: int, unroll: int, discount: float, part: float, random: np.random.Generator
    ) -> Batch:
        """Draw a batch, `part` of it from demonstrations if there are any."""
        shown = round(part * count) if len(self.own) else count
        shown = shown if len(self.demonstrations) else 0
        batches = [
            _draw(buffer, size, unroll, discount, random)
            for buffer, size in ((self.demonstrations, shown), (self.own, count - shown))
            if size and len(buffer)
        ]
        return jax.tree.map(lambda *x: np.concatenate(x), *batches)

    def state(self) -> dict[str, object]:
        return {"own": self.own.state(), "shown": self.demonstrations.state()}

    def restore(self, state: State) -> None:
        self.own.restore(state["own"])
        self.demonstrations.restore(state["shown"])


def returns(
    reward: np.ndarray, discount: np.ndarray, last: np.ndarray | float
) -> NDArray[np.float32]:
    """Return the returns [.., K + 1] of rewards and discounts [.., K], and of the last value."""
    values = np.empty((*reward.shape[:-1], reward.shape[-1] + 1), np.float32)
    values[..., -1] = last
    for k in reversed(range(reward.shape[-1])):
        values[..., k] = reward[..., k] + discount[..., k] * values[..., k + 1]
    return values


def _draw(
    buffer: ReplayBuffer, count: int, unroll: int, discount: float, random: np.random.Generator
) -> Batch:
    drawn = segments_of(buffer.draw(count, random)[1])
    length = drawn.action.shape[1]
    start = random.integers(length, size=count)
    values = returns(drawn.reward, drawn.discount * discount, drawn.value[:, -1])
    rows = np.arange(count)
    alive = np.ones((count, unroll + 1), np.float32)
    for u in range(unroll):
        at = np.minimum(start + u, length - 1)
        alive[:, u + 1] = alive[:, u] * (drawn.discount[rows, at] > 0) * (start + u < length)
    states = np.minimum(start[:, None] + np.arange(unroll + 1), length)
    decisions = np.minimum(states, length - 1)
    lanewise = rows[:, None]
    return Batch(
        views=drawn.views.at((rows, start)),
        action=drawn.action[lanewise, decisions[:, :-1]],
        reward=drawn.reward[lanewise, decisions[:, :-1]],
        policy=drawn.policy[lanewise, decisions],
        value=values[lanewise, states],
        weight=alive * (states < length),
        alive=alive,
    )
