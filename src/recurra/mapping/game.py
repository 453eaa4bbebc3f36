"""MMapGame: buffers in order of time, each Copy, NoCopy or Drop (sections 4.2, 4.3.2, appendix A).

The Python twin of `engine/game.h`. docs/mapping.md lists the rules that the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from recurra.mapping.game_state import NOWHERE, Board, Move
from recurra.mapping.struct_of_arrays import NEVER, FlatProblem
from recurra.storage.mapping_problem import Solution


class Action(IntEnum):
    """A move for the current buffer."""

    COPY = 0
    NOCOPY = 1
    DROP = 2


# The order in which a preference tries the actions. One preference per buffer describes a game.
PREFERENCES: tuple[tuple[Action, ...], ...] = (
    (Action.COPY, Action.NOCOPY, Action.DROP),
    (Action.NOCOPY, Action.COPY, Action.DROP),
    (Action.DROP, Action.NOCOPY, Action.COPY),
    (Action.NOCOPY, Action.DROP, Action.COPY),
)
_OPEN, _FAST, _SLOW = 0, 1, 2  # the state of an alias group
_DROPPED = Move(NOWHERE, 0, -1)


@dataclass(frozen=True)
class _Before:
    """The state before an action, to undo it."""

    covered_until: int
    slow_from: int
    offset: int
    group_state: int
    open_groups: int
    placed: bool
    reward: int


class Game:
    """One game, with exact undo. A state without a legal action is lost, unless it is backed up."""

    def __init__(self, flat: FlatProblem) -> None:
        self.flat = flat
        self.board = Board(flat)
        self._output: list[int] = flat.output.tolist()
        self._at: list[int] = flat.at.tolist()
        self._tensor: list[int] = flat.tensor.tolist()
        self._storage: list[int] = flat.storage.tolist()
        self._grouped: list[int] = flat.grouped.tolist()
        self._last = {s: i for i, s in enumerate(self._storage)}
        self.reset()

    def reset(self) -> None:
        """Begin at the first buffer, with nothing placed and no group forced out."""
        self.board.clear()
        self.index = 0
        self.forced = [False] * len(self._grouped)
        self._covered = [-1] * len(self.flat.live_in)  # the last step a tensor is in fast memory
        # the step after which it is in slow memory
        self._slow = [-1 if x else NEVER for x in self.flat.live_in.tolist()]
        self._offset = [NOWHERE] * len(self._grouped)
        self._group_states = [_OPEN] * len(self._grouped)
        self._open = 0  # groups that are in fast memory and go on
        self._log: list[_Before] = []

    @property
    def done(self) -> bool:
        return self.index == len(self._at)

    @property
    def reward(self) -> int:
        """The picoseconds gained so far."""
        return self.board.reward

    def legal(self) -> dict[Action, Move]:
        """The legal actions for the current buffer, and where each would place it."""
        return {a: m for a in Action if (m := self.move(a)) is not None}

    def move(self, action: Action) -> Move | None:
        """The move of an action on the current buffer; None if it is not legal."""
        i = self.index
        s = self._storage[i]
        state = _SLOW if self.forced[s] else self._group_states[s]
        if action == Action.DROP:
            in_slow = self._output[i] or self._slow[self._tensor[i]] < self._at[i]
            return _DROPPED if state != _FAST and in_slow else None
        if state == _SLOW:
            return None
        fixed = self._offset[s] if self._grouped[s] else NOWHERE
        if self._output[i]:
            return (self._leave if action == Action.COPY else self._stay)(i, fixed)
        return (self._fetch if action == Action.COPY else self._retain)(i, fixed)

    def _stay(self, index: int, fixed: int) -> Move | None:
        if self.flat.live_out[index]:
            return None
        start, end = self._at[index], int(self.flat.life_end[index])
        return self._room(index, start, end, fixed, copied=False)

    def _leave(self, index: int, fixed: int) -> Move | None:
        end = self.board.copy_end(index)
        return None if end < 0 else self._room(index, self._at[index], end, fixed, copied=True)

    def _fetch(self, index: int, fixed: int) -> Move | None:
        x, t = self._tensor[index], self._at[index]
        if self._covered[x] >= t or self._slow[x] >= t:
            return None
        start = self.board.copy_start(index, self._slow[x])
        return None if start < 0 else self._room(index, start, t, fixed, copied=True)

    def _retain(self, index: int, _: int) -> Move | None:
        x, t = self._tensor[index], self._at[index]
        offset, until = self._offset[self._storage[index]], self._covered[x]
        if until >= t:
            return Move(offset, t, t, covered=True)
        return None if until < 0 else self._room(index, until + 1, t, offset, copied=False)

    def _room(self, index: int, start: int, end: int, fixed: int, copied: bool) -> Move | None:
        offset = self.board.lowest(index, start, end, fixed)
        return None if offset == NOWHERE else Move(offset, start, end, copied)

    def step(self, action: Action) -> int:
        """Play a legal action; return its reward in picoseconds."""
        move = self.move(action)
        assert move is not None, f"{action.name} is not legal for buffer {self.index}"
        i = self.index
        x, s, t = self._tensor[i], self._storage[i], self._at[i]
        states = self._group_states
        before = (self._covered[x], self._slow[x], self._offset[s], states[s], self._open)
        fast = action != Action.DROP
        gained = self.board.put(i, move) if fast else 0
        self._log.append(_Before(*before, placed=fast, reward=gained))
        if self._output[i]:
            self._covered[x] = move.end if fast else -1
            ends = {Action.COPY: move.end, Action.NOCOPY: NEVER, Action.DROP: t}
            self._slow[x] = ends[action]
        elif fast:
            self._covered[x] = max(self._covered[x], move.end)
        if fast:
            self._offset[s] = move.offset
        if self._grouped[s]:
            self._open += fast and states[s] == _OPEN
            self._open -= fast and self._last[s] == i
            states[s] = _FAST if fast else _SLOW
        self.index += 1
        return gained

    def undo(self) -> int:
        """Take the last action back; return the reward that it had brought."""
        self.index -= 1
        i = self.index
        x, s, b = self._tensor[i], self._storage[i], self._log.pop()
        if b.placed:
            self.board.take(i)
        self._covered[x], self._slow[x] = b.covered_until, b.slow_from
        self._offset[s], self._group_states[s], self._open = b.offset, b.group_state, b.open_groups
        return b.reward

    def rewind(self, index: int) -> None:
        """Take actions back until buffer `index` is the current one."""
        while self.index > index:
            self.undo()

    def backup(self) -> int:
        """Go back from a state without a legal action (Drop-backup, section 4.3.2).

        The target is the last state from which all that follows could be dropped; the group that
        could not be placed is dropped from then on. Returns the number of actions taken back.
        """
        assert not self.legal(), "there is something else to do"
        stuck, before = self._storage[self.index], self.index
        assert self._grouped[stuck] > self.forced[stuck], "dropping is always legal otherwise"
        while self._open:
            self.undo()
        self.forced[stuck] = True
        return before - self.index

    def price(self) -> int:
        """The reward that Drop-backup would take back from here, in picoseconds."""
        total = 0
        for b in reversed(self._log if self._open else []):
            total += b.reward
            if not b.open_groups:
                break
        return total

    def advance(self, backed: bool = True) -> int:
        """Play all forced moves; return how many actions are legal then.

        That is 0 at the end, and also where the game is lost if it is not `backed` up.
        """
        while not self.done:
            legal = list(self.legal())
            if len(legal) > 1 or not (legal or backed):
                return len(legal)
            if legal:
                self.step(legal[0])
            else:
                self.backup()
        return 0

    def play(self, preferences: Sequence[int] | np.ndarray) -> int:
        """Play to the end, backed up: the first legal action of each buffer's preference."""
        while not self.play_on(preferences):
            self.backup()
        return self.reward

    def play_on(self, preferences: Sequence[int] | np.ndarray) -> bool:
        """Play until the end, or until no action is legal; return whether it is the end."""
        while not self.done:
            for action in PREFERENCES[preferences[self.index]]:
                if self.move(action) is not None:
                    self.step(action)
                    break
            else:
                return False
        return True

    def play_random(self, draws: Sequence[int] | np.ndarray, limit: int = 2**62) -> int:
        """Play at most `limit` steps, backed up: step k takes the legal action draws[k] mod n.

        `draws` repeat if they are too few. Returns the number of steps played.
        """
        steps = 0
        while not self.done and steps < limit:
            legal = list(self.legal())
            if legal:
                self.step(legal[draws[steps % len(draws)] % len(legal)])
                steps += 1
            else:
                self.backup()
        return steps

    def solution(self) -> Solution:
        """The placements so far; all other buffers are in slow memory."""
        return self.board.solution()
