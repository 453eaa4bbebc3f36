"""Order-free mapping: storages are placed one after another, each for its whole life.

The most important storage is placed first, whatever its time. Such a mapping is valid, but need
not be a game that can be played in order of time. The Python twin of `engine/arrange.h`.
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
class PlacementOdds:
    """The odds (of 2^32) that a buffer is left out, copied though it could stay, or kept shorter.

    `seed` selects the buffers; by default there are none.
    """

    seed: int = 0
    skip: int = 0
    copy: int = 0
    short: int = 0


@dataclass(frozen=True, eq=False)
class Rounds:
    """A batch of rounds of ruin and recreate, drawn in advance; each row is one round.

    `order` [R, K]: storages to remove and to place again in this order, -1 and repetitions are
    ignored; `seed`, `skip`, `copy`, `short` [R]: `PlacementOdds`; `bear` [R]: the loss of reward,
    in picoseconds, that is still accepted.
    """

    order: Ints
    seed: Ints
    skip: Ints
    copy: Ints
    short: Ints
    bear: Ints

    def __len__(self) -> int:
        return len(self.seed)


def draw(seed: int, index: int, decision: int) -> int:
    """Return 32 random bits for one decision about a buffer: splitmix64 of all three."""
    z = (seed + 0x9E3779B97F4A7C15 * (4 * index + decision + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 32


class OrderFreePlacer:
    """A mapping under construction, and the best one so far."""

    def __init__(self, flat: FlatProblem) -> None:
        self.flat = flat
        self.board = Board(flat)
        starts = flat.member_at.tolist()
        members: list[int] = flat.members.tolist()
        self._members = [members[a:b] for a, b in itertools.pairwise(starts)]
        self.best = 0
        self._best: list[Move | None] = list(self.board.moves)
        self._missed: list[tuple[int, int, int]] = []  # buffer, steps: what found no room

    def arrange(self, order: Sequence[int] | np.ndarray) -> int:
        """Clear, place storages in this order, and return the reward."""
        return self.arrange_repacking(order, 0)

    def arrange_repacking(self, order: Sequence[int] | np.ndarray, most: int) -> int:
        """Do the same, and repack where only fragmentation keeps a storage out, then try again.

        It repacks at most `most` times, whether it helps or not.
        """
        self.board.clear()
        for s in order:
            self.place(s, PlacementOdds())
            if most and self._cramped():
                most -= 1
                self._remove([s])
                self.repack()
                self.place(s, PlacementOdds())
        return self.note()

    def repack(self) -> bool:
        """Assign new offsets, to the longest-lived pieces first, of these to the largest.

        Steps and the reward stay. Returns False, and changes nothing, if not everything fits.
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
        """The first step, last step and buffers of each piece, in the order of `repack`.

        A piece has one offset: it is a group, or a tensor from the step in which it is computed or
        copied to fast memory until it leaves.
        """
        pieces: list[list[tuple[int, Move]]] = []
        for s, members in enumerate(self._members):
            placed = [(i, move) for i in members if (move := self.board.moves[i]) is not None]
            for k, (i, move) in enumerate(placed):
                begins = not self.flat.grouped[s] and (self.flat.output[i] or move.copied)
                if k == 0 or begins:
                    pieces.append([])
                pieces[-1].append((i, move))
        spans = [(min(m.start for _, m in p), max(m.end for _, m in p), p) for p in pieces]
        return sorted(spans, key=lambda x: (x[0] - x[1], -self.flat.size[x[2][0][0]]))

    def note(self) -> int:
        """Keep the current mapping if it is the best so far; return its reward."""
        if self.board.reward > self.best:
            self.best, self._best = self.board.reward, list(self.board.moves)
        return self.board.reward

    def improve(self, rounds: Rounds) -> int:
        """Remove and place storages in rounds, keep those that lose little; return their number."""
        kept = 0
        for k in range(len(rounds)):
            order = [s for s in dict.fromkeys(rounds.order[k].tolist()) if s >= 0]
            w = (int(x[k]) for x in (rounds.seed, rounds.skip, rounds.copy, rounds.short))
            kept += self._round(order, PlacementOdds(*w), int(rounds.bear[k]))
        return kept

    def _round(self, order: list[int], odds: PlacementOdds, bear: int) -> bool:
        before = self.board.reward
        old = [(i, self.board.moves[i]) for s in order for i in self._members[s]]
        used = {i: self.board.used[i] for i, _ in old if i in self.board.used}
        self._remove(order)
        for s in order:
            self.place(s, odds)
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
        """Put old moves back, copies with the supply that they had used."""
        for i, move in old:
            if move is not None:
                self.board.put(i, move, used.get(i))

    def place(self, storage: int, odds: PlacementOdds) -> None:
        """Place a storage, buffer by buffer: each stays if possible, else is copied or left out.

        A group that does not fit as a whole is left out.
        """
        f, members = self.flat, self._members[storage]
        self._missed.clear()
        grouped = bool(f.grouped[storage])
        offset, tensor, covered, slow = NOWHERE, -1, -1, NEVER
        for i in members:
            x, t = int(f.tensor[i]), int(f.at[i])
            if x != tensor:
                tensor, covered, slow = x, -1, -1 if f.live_in[x] else NEVER
            fixed = offset if grouped else NOWHERE
            skip = not grouped and draw(odds.seed, i, 0) < odds.skip
            if covered >= t:
                move = Move(offset, t, t, covered=True)
            elif skip:
                move = None
            elif f.output[i]:
                short = not grouped and draw(odds.seed, i, 1) < odds.short
                move = self._output(i, fixed, short)
            else:
                move = self._operand(i, fixed, offset, covered, slow, odds)
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
        if not f.live_out[index] and not short:
            end = int(f.life_end[index])
            offset = self._room(index, t, end, fixed)
            if offset != NOWHERE:
                return Move(offset, t, end)
        end = self.board.copy_end(index)
        return None if end < 0 else self._copied(index, t, end, fixed)

    def _operand(
        self, index: int, fixed: int, offset: int, covered: int, slow: int, odds: PlacementOdds
    ) -> Move | None:
        t = int(self.flat.at[index])
        copy_first = draw(odds.seed, index, 2) < odds.copy
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
        """A copy at an offset where it could stay until the next use, if there is one."""
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
        """Return whether only fragmentation keeps a buffer of the last storage out."""
        limit = self.flat.problem.fast_size
        return any(
            self.board.moves[i] is None
            and self.board.fullest(start, end) + int(self.flat.size[i]) <= limit
            for i, start, end in self._missed
        )

    @property
    def reward(self) -> int:
        """The picoseconds gained by the current placements."""
        return self.board.reward

    def current(self) -> Solution:
        """The current placements."""
        return self.board.solution()

    def solution(self) -> Solution:
        """The best placements so far."""
        return solution(self._best)
