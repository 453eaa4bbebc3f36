"""What was played, to learn from again: pieces of games, as many decisions each.

New pieces push the oldest out; demonstrations are apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.learn.view import View


class Segment(NamedTuple):
    """L pieces of K decisions. Game may follow on game; the discount is zero at an end."""

    seen: View  # [L, K + 1, ..]
    action: Any  # [L, K]
    reward: Any  # [L, K] beside the reference game's, of all there is to gain
    discount: Any  # [L, K]
    policy: Any  # [L, K, 3] to learn
    value: Any  # [L, K + 1] what planning found


class Batch(NamedTuple):
    """B states and what followed: U actions, targets of the U + 1 states."""

    seen: View
    action: Any  # [B, U]
    reward: Any  # [B, U]
    policy: Any  # [B, U + 1, 3]
    value: Any  # [B, U + 1]
    weight: Any  # [B, U + 1] of the policy, zero where there is none
    alive: Any  # [B, U + 1] zero behind the end of a game or of a piece


@dataclass
class Pool:
    """Pieces in the order in which they came."""

    pieces: Segment | None = None
    _room: Segment | None = field(default=None, repr=False)  # `pieces` are the last of those here
    _end: int = 0

    def __len__(self) -> int:
        return 0 if self.pieces is None else len(self.pieces.action)

    def piece(self, k: int) -> Segment:
        """One of them, [K, ..]."""
        assert self.pieces is not None, "there are pieces"
        return _map(lambda x: x[k], self.pieces)

    def set(self, pieces: Segment) -> None:
        """These in place of all others."""
        self.pieces, self._room, self._end = pieces, None, 0

    def add(self, new: Segment, most: int) -> None:
        """Keeps the last `most` pieces."""
        new = _map(lambda x: np.asarray(x)[-most:], new)
        count = len(new.action)
        if self._room is None or self._end + count > len(self._room.action):
            self._move(new, most)
        first, self._end = self._end, self._end + count
        self.pieces = _map(lambda room, x: _put(room, x, first, most), self._room, new)

    def _move(self, new: Segment, most: int) -> None:
        """Into new room, for twice as many as are kept: each piece is moved once or not at all."""
        count = 2 * most + len(new.action)
        self._room = _map(lambda x: np.empty((count, *x.shape[1:]), x.dtype), new)
        self._end = min(len(self), most)
        if self.pieces is not None:
            _map(lambda room, x: _put(room, x[-most:], 0, most), self._room, self.pieces)


class Replay:
    """One's own games, and demonstrations."""

    def __init__(self, size: int, segment: int) -> None:
        self.most = max(1, size // segment)
        self.own, self.shown = Pool(), Pool()

    def add(self, new: Segment) -> None:
        self.own.add(new, self.most)

    def show(self, new: Segment, most: int) -> None:
        """Adds demonstrations; the last `most` pieces of them are kept."""
        self.shown.add(new, most)

    def draw(
        self, count: int, unroll: int, discount: float, part: float, random: np.random.Generator
    ) -> Batch:
        """`part` of it from demonstrations, if there are any."""
        shown = round(part * count) if len(self.own) else count
        shown = shown if len(self.shown) else 0
        drawn = [
            _drawn(pool.pieces, some, unroll, discount, random)
            for pool, some in ((self.shown, shown), (self.own, count - shown))
            if some and pool.pieces is not None
        ]
        return _map(lambda *x: np.concatenate(x), *drawn)

    def state(self) -> dict[str, Any]:
        pools = {"own": self.own, "shown": self.shown}
        return {k: _named(p.pieces) for k, p in pools.items() if p.pieces is not None}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, pool in (("own", self.own), ("shown", self.shown)):
            if name in state:
                x = dict(state[name])
                pool.set(Segment(View(**x.pop("seen")), **x))


def _put(room: Any, x: Any, first: int, most: int) -> Any:
    """Writes x from row `first` on; the last `most` rows that are written."""
    end = first + len(x)
    room[first:end] = x
    return room[max(0, end - most) : end]


def _named(pieces: Segment) -> dict[str, Any]:
    return {**pieces._asdict(), "seen": pieces.seen._asdict()}


def _map(f: Any, *trees: Any) -> Any:
    """Over named tuples of arrays."""
    if isinstance(trees[0], tuple):
        return type(trees[0])(*(_map(f, *x) for x in zip(*trees, strict=True)))
    return f(*trees)


def returns(pieces: Segment, discount: float) -> NDArray[np.float32]:
    """[L, K + 1] what each state was worth in the end; beyond a piece, what planning found."""
    worth = np.array(pieces.value, np.float32)
    for k in reversed(range(pieces.action.shape[1])):
        worth[:, k] = pieces.reward[:, k] + pieces.discount[:, k] * discount * worth[:, k + 1]
    return worth


def _drawn(
    pieces: Segment, count: int, unroll: int, discount: float, random: np.random.Generator
) -> Batch:
    lanes, length = pieces.action.shape
    lane, start = random.integers(lanes, size=count), random.integers(length, size=count)
    some = _map(lambda x: x[lane], pieces)
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
