"""The state of the game: placements, supply left for copies, and the latency of each instruction.

The game (`game.py`) and the order-free placer (`order_free_placer.py`) share it. It is the Python
twin of `engine/board.h`: the oracle, and the engine where nothing native can be built.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from recurra.mapping.struct_of_arrays import FlatProblem
from recurra.storage.mapping_problem import Placement, Solution

BLOCK = 16  # steps per bucket of the index of placements
NOWHERE = -1


class Move(NamedTuple):
    """A placement to try: steps `start..end`; it takes no new memory if `covered`."""

    offset: int
    start: int
    end: int
    copied: bool = False
    covered: bool = False  # by a placement that is already there


class Board:
    """Placements that can be put and taken away in any order, exactly."""

    def __init__(self, flat: FlatProblem) -> None:
        self.flat = flat
        for name in ("size", "output", "at", "storage", "demand", "evict_by", "gain", "bit"):
            setattr(self, f"_{name}", getattr(flat, name).tolist())
        self._grouped: list[int] = flat.grouped.tolist()
        self._fast_size = flat.problem.fast_size
        self.clear()

    _size: list[int]
    _output: list[int]
    _at: list[int]
    _storage: list[int]
    _demand: list[int]
    _evict_by: list[int]
    _gain: list[int]
    _bit: list[int]

    def clear(self) -> None:
        """Put everything in slow memory."""
        steps = len(self.flat.supply)
        self.left: list[int] = self.flat.supply.tolist()  # [T] supply that no copy uses
        self.crossed = [False] * steps  # [T] a copy goes on from this step to the next
        self.moves: list[Move | None] = [None] * len(self._size)
        self.used: dict[int, list[tuple[int, int]]] = {}  # copied buffer -> (step, time taken)
        self.traffic: list[int] = self.flat.traffic.tolist()
        self.mask = [0] * steps
        self.reward = 0
        self._blocks: list[list[int]] = [[] for _ in range(steps // BLOCK + 1)]

    def put(self, index: int, move: Move, used: list[tuple[int, int]] | None = None) -> int:
        """Place a buffer; return its reward. `used`: the time that its copy takes in each step."""
        self.moves[index] = move
        for block in self._blocks_of(move):
            block.append(index)
        if move.copied:
            self.used[index] = self._demanded(index, move) if used is None else used
            self._change_supply(self.used[index], -1)
        return self._change_traffic(index, -self._gain[index])

    def take(self, index: int) -> None:
        """Undo `put(index, ..)`, whatever was put since."""
        move = self.moves[index]
        assert move is not None, "only a placed buffer can be taken away"
        self.moves[index] = None
        for block in self._blocks_of(move):
            block.remove(index)
        if move.copied:
            self._change_supply(self.used.pop(index), 1)
        self._change_traffic(index, self._gain[index])

    def _blocks_of(self, move: Move) -> list[list[int]]:
        return [] if move.covered else self._blocks[move.start // BLOCK : move.end // BLOCK + 1]

    def _change_supply(self, used: list[tuple[int, int]], sign: int) -> None:
        for step, amount in used:
            self.left[step] += sign * amount
        steps = [step for step, _ in used]
        for step in range(min(steps, default=0), max(steps, default=0)):
            self.crossed[step] = sign < 0

    def _change_traffic(self, index: int, change: int) -> int:
        """Change the traffic of a buffer's instruction, and flip its bit; return the reward."""
        t = self._at[index]
        before = self.latency(t)
        self.traffic[t] += change
        if self._bit[index] >= 0:
            self.mask[t] ^= 1 << self._bit[index]
        gained = before - self.latency(t)
        self.reward += gained
        return gained

    def latency(self, step: int) -> int:
        """The latency of an instruction, up to its overhead."""
        table = int(self.flat.table_at[step])
        if table >= 0:
            return int(self.flat.tables[table + self.mask[step]])
        slowest = max(int(self.flat.compute[step]), self.traffic[step])
        return int(self.flat.times[step]) * slowest

    def lowest(self, index: int, start: int, end: int, fixed: int = NOWHERE) -> int:
        """The lowest offset at which a buffer fits in `start..end`; NOWHERE if there is none.

        With `fixed` only that offset is tried. Members of an alias group may overlap each other.
        """
        size, storage = self._size[index], self._storage[index]
        group = storage if self._grouped[storage] else NOWHERE
        occupied: set[tuple[int, int]] = set()
        for k in range(start // BLOCK, end // BLOCK + 1):
            for j in self._blocks[k]:
                move = self.moves[j]
                assert move is not None, "the index holds what is placed"
                meet = move.start <= end and move.end >= start
                if meet and self._storage[j] != group:
                    occupied.add((move.offset, move.offset + self._size[j]))
        if fixed != NOWHERE:
            free = all(high <= fixed or fixed + size <= low for low, high in occupied)
            return fixed if free and fixed + size <= self._fast_size else NOWHERE
        offset = 0
        for low, high in sorted(occupied):
            if low >= offset + size:
                break
            offset = max(offset, high)
        return offset if offset + size <= self._fast_size else NOWHERE

    def during(self, start: int, end: int) -> dict[int, Move]:
        """The buffers in fast memory in these steps."""
        placed: dict[int, Move] = {}
        for k in range(max(start, 0) // BLOCK, min(end, len(self.left) - 1) // BLOCK + 1):
            for j in self._blocks[k]:
                move = self.moves[j]
                if move is not None and move.start <= end and move.end >= start:
                    placed[j] = move
        return placed

    def fullest(self, start: int, end: int) -> int:
        """The bytes in use in the fullest of these steps."""
        change = [0] * (end - start + 2)
        counted: dict[int, int] = {}  # group -> last counted step: members share their address
        for j, move in sorted(self.during(start, end).items(), key=lambda x: x[1].start):
            first, last, s = max(move.start, start), min(move.end, end), self._storage[j]
            if self._grouped[s]:
                first = max(first, counted.get(s, -1) + 1)
                counted[s] = max(last, first - 1)
            if first <= last:
                change[first - start] += self._size[j]
                change[last - start + 1] -= self._size[j]
        return max(accumulate(change))

    def copy_start(self, index: int, after: int) -> int:
        """The latest first step of an operand's copy that begins after step `after`; or -1."""
        t = self._at[index]
        start, time = t, 0
        while time < self._demand[index]:
            if start - 1 <= after or (start < t and self.crossed[start - 1]):
                return -1
            start -= 1
            time += self.left[start]
        return start

    def copy_end(self, index: int) -> int:
        """The earliest last step of an output's copy; or -1."""
        t = self._at[index]
        end, time = t, 0
        while time < self._demand[index]:
            if end + 1 > self._evict_by[index] or (end > t and self.crossed[end]):
                return -1
            end += 1
            time += self.left[end]
        return end

    def _demanded(self, index: int, move: Move) -> list[tuple[int, int]]:
        """The time that a copy takes in each step: the latest for operands, the earliest else."""
        t, need = self._at[index], self._demand[index]
        out = self._output[index]
        used: list[tuple[int, int]] = []
        for step in range(t + 1, move.end + 1) if out else range(t - 1, move.start - 1, -1):
            amount = min(self.left[step], need)
            need -= amount
            used.append((step, amount))
        assert need == 0, "a copy interval covers the demand"
        return used

    def solution(self) -> Solution:
        """The current placements."""
        return solution(self.moves)


def solution(moves: Sequence[Move | None]) -> Solution:
    """Return moves as placements."""
    return Solution(tuple(m and Placement(m.offset, m.start, m.end, m.copied) for m in moves))
