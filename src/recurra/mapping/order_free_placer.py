"""Order-free mapping: storages are placed one after another, each for its whole life.

The order decides, not the time: what matters most is placed first. A mapping made so holds, but
need not be a game that can be played in order of time. The plain twin of `engine/arrange.h`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recurra.mapping.game_state import NOWHERE, Board, Move, solution
from recurra.mapping.struct_of_arrays import NEVER, FlatProblem, Ints
from recurra.storage.mapping_problem import Solution

_MASK = 2**64 - 1


@dataclass(frozen=True)
class Whims:
    """The odds (of 2^32) that a buffer is left out, copied though it could stay, or kept shorter.

    `seed` decides for which buffers; all zero: never.
    """

    seed: int = 0
    skip: int = 0
    copy: int = 0
    short: int = 0


@dataclass(frozen=True, eq=False)
class Rounds:
    """A batch of rounds of ruin and recreate, drawn in advance; each row is one round.

    `order` [R, K]: storages to take out and place again in this order, -1 and repetitions are
    passed over; `seed`, `skip`, `copy`, `short` [R]: whims; `bear` [R]: the loss of reward, in
    picoseconds, that is still accepted.
    """

    order: Ints
    seed: Ints
    skip: Ints
    copy: Ints
    short: Ints
    bear: Ints

    def __len__(self) -> int:
        return len(self.seed)


def draw(seed: int, index: int, what: int) -> int:
    """32 random bits for a decision about buffer i: splitmix64 of all three."""
    z = (seed + 0x9E3779B97F4A7C15 * (4 * index + what + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 32


class Arranger:
    """A mapping under construction, and the best one seen."""

    def __init__(self, flat: FlatProblem) -> None:
        self.flat = flat
        self.board = Board(flat)
        starts = flat.member_at.tolist()
        members: list[int] = flat.members.tolist()
        self._members = [members[a:b] for a, b in itertools.pairwise(starts)]
        self.best = 0
        self._best: list[Move | None] = list(self.board.moves)
        self._missed: list[tuple[int, int, int]] = []  # buffer, steps: what found no room

    def clear(self) -> None:
        """Everything in slow memory; the best is kept."""
        self.board.clear()

    def arrange(self, order: Sequence[int] | np.ndarray) -> int:
        """Clears, places storages in this order, and gives the reward."""
        self.clear()
        for s in order:
            self.place(s, Whims())
        return self.note()

    def arrange_repacking(self, order: Sequence[int] | np.ndarray, most: int) -> int:
        """`arrange`; what lacks room in one piece only is placed again after a repacking.

        At most `most` times, whether it helps or not.
        """
        self.clear()
        for s in order:
            self.place(s, Whims())
            if most and self._cramped():
                most -= 1
                self._remove([s])
                self.repack()
                self.place(s, Whims())
        return self.note()

    def repack(self) -> bool:
        """Gives what is placed new offsets: what lasts longest first, then what is largest.

        Steps and the reward stay. Does not all of it fit so? Then nothing changes.
        """
        moves, used, pieces = list(self.board.moves), dict(self.board.used), self._pieces()
        self.board.clear()
        for start, end, piece in pieces:
            offset = self.board.lowest(piece[0][0], start, end)
            if offset == NOWHERE:
                self.board.clear()
                self._restore(list(enumerate(moves)), used)
                return False
            for i, move in piece:
                self.board.put(i, move._replace(offset=offset), used.get(i))
        return True

    def _pieces(self) -> list[tuple[int, int, list[tuple[int, Move]]]]:
        """The pieces with one offset, their first and last steps, in the order of `repack`.

        A piece is a group, or a tensor from where it is made or comes until it is there no more.
        """
        pieces: list[list[tuple[int, Move]]] = []
        for s, members in enumerate(self._members):
            placed = [(i, move) for i in members if (move := self.board.moves[i]) is not None]
            for k, (i, move) in enumerate(placed):
                comes = not self.flat.grouped[s] and (self.flat.output[i] or move.copied)
                if k == 0 or comes:
                    pieces.append([])
                pieces[-1].append((i, move))
        spans = [(min(m.start for _, m in p), max(m.end for _, m in p), p) for p in pieces]
        return sorted(spans, key=lambda x: (x[0] - x[1], -self.flat.size[x[2][0][0]]))

    def note(self) -> int:
        """Keeps what is there if it is the best so far; its reward."""
        if self.board.reward > self.best:
            self.best, self._best = self.board.reward, list(self.board.moves)
        return self.board.reward

    def improve(self, rounds: Rounds) -> int:
        """Takes some storages out, places them in another order, keeps what is not too bad.

        The number of rounds that were kept.
        """
        kept = 0
        for k in range(len(rounds)):
            order = [s for s in dict.fromkeys(rounds.order[k].tolist()) if s >= 0]
            w = (int(x[k]) for x in (rounds.seed, rounds.skip, rounds.copy, rounds.short))
            kept += self._round(order, Whims(*w), int(rounds.bear[k]))
        return kept

    def _round(self, order: list[int], whims: Whims, bear: int) -> bool:
        before = self.board.reward
        old = [(i, self.board.moves[i]) for s in order for i in self._members[s]]
        used = {i: self.board.used[i] for i, _ in old if i in self.board.used}
        self._remove(order)
        for s in order:
            self.place(s, whims)
        if self.board.reward >= before - bear:
            self.note()
            return True
        self._remove(order)
        self._restore(old, used)
        return False

    def _remove(self, order: list[int]) -> None:
        for s in order:
            for i in self._members[s]:
                if self.board.moves[i] is not None:
                    self.board.take(i)

    def _restore(
        self, old: list[tuple[int, Move | None]], used: dict[int, list[tuple[int, int]]]
    ) -> None:
        """Puts back what was there, copies with the very time that they had taken."""
        for i, move in old:
            if move is not None:
                self.board.put(i, move, used.get(i))

    def place(self, storage: int, whims: Whims) -> None:
        """Places a storage, buffer by buffer: stays if it can, is copied if it must; or nothing.

        A group that does not fit as a whole is left out.
        """
        f, members = self.flat, self._members[storage]
        self._missed.clear()
        grouped = bool(f.grouped[storage])
        offset, tensor, covered, slow = NOWHERE, -1, -1, NEVER
        for i in members:
            x, t = int(f.tensor[i]), int(f.at[i])
            if x != tensor:
                tensor, covered, slow = x, -1, -1 if f.exists[x] else NEVER
            fixed = offset if grouped else NOWHERE
            skip = not grouped and draw(whims.seed, i, 0) < whims.skip
            if covered >= t:
                move = Move(offset, t, t, covered=True)
            elif skip:
                move = None
            elif f.output[i]:
                short = not grouped and draw(whims.seed, i, 1) < whims.short
                move = self._output(i, fixed, short)
            else:
                move = self._operand(i, fixed, offset, covered, slow, whims)
            if move is not None:
                self.board.put(i, move)
                offset, covered = move.offset, max(covered, move.end)
            elif grouped:
                self._remove([storage])
                return
            if f.output[i]:
                slow = t if move is None else move.end if move.copied else NEVER

    def _output(self, index: int, fixed: int, short: bool) -> Move | None:
        f, t = self.flat, int(self.flat.at[index])
        if not f.wanted[index] and not short:
            end = int(f.life_end[index])
            offset = self._room(index, t, end, fixed)
            if offset != NOWHERE:
                return Move(offset, t, end)
        end = self.board.copy_end(index)
        return None if end < 0 else self._copied(index, t, end, fixed)

    def _operand(
        self, index: int, fixed: int, offset: int, covered: int, slow: int, whims: Whims
    ) -> Move | None:
        t = int(self.flat.at[index])
        copy_first = draw(whims.seed, index, 2) < whims.copy
        for copy in (copy_first, not copy_first):
            if copy and slow < t:
                start = self.board.copy_start(index, slow)
                move = None if start < 0 else self._copied(index, start, t, fixed)
                if move is not None:
                    return move
            stays = not copy and covered >= 0
            if stays and self._room(index, covered + 1, t, offset) != NOWHERE:
                return Move(offset, covered + 1, t)
        return None

    def _copied(self, index: int, start: int, end: int, fixed: int) -> Move | None:
        """The move by which the copy could stay until the next use, if there is room."""
        offset, later = NOWHERE, int(self.flat.next_use[index])
        if fixed == NOWHERE and later > end:
            offset = self._room(index, start, later)
        if offset == NOWHERE:
            offset = self._room(index, start, end, fixed)
        return None if offset == NOWHERE else Move(offset, start, end, copied=True)

    def _room(self, index: int, start: int, end: int, fixed: int = NOWHERE) -> int:
        offset = self.board.lowest(index, start, end, fixed)
        if offset == NOWHERE:
            self._missed.append((index, start, end))
        return offset

    def _cramped(self) -> bool:
        """Is anything of the last storage left out that would fit, were all room in one piece?"""
        limit = self.flat.problem.fast_size
        return any(
            self.board.moves[i] is None
            and self.board.fullest(start, end) + int(self.flat.size[i]) <= limit
            for i, start, end in self._missed
        )

    @property
    def reward(self) -> int:
        """Picoseconds gained by what is placed now."""
        return self.board.reward

    def current(self) -> Solution:
        """The current placements."""
        return self.board.solution()

    def solution(self) -> Solution:
        """The best seen."""
        return solution(self._best)
