"""Packs items with fixed lives into one memory, or finds that it cannot: what minimalloc is asked.

Branch and bound over the skyline, the height at each step below which nothing more goes. A valley
is a run of steps of one height between higher ones. Either some item rests on it, and the leftmost
such item decides: to its left nothing does. Or nothing rests on it, and it is raised to the lower
of its neighbours. The valley with the fewest possibilities comes first; sets of items whose lives
do not meet are packed one after another. The plain twin of `engine/pack.h`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class Packed(IntEnum):
    """Can it be packed?"""

    NO = 0
    YES = 1
    UNKNOWN = 2  # the nodes are used up


@dataclass(frozen=True)
class _Valley:
    first: int
    last: int
    height: int
    left: int
    right: int
    items: list[int]  # that may be the leftmost to rest on it
    raised: bool  # may nothing rest on it?


@dataclass
class Packer:
    """Items [N]: their first and last steps, sizes, and ranks (a permutation; lower goes first)."""

    steps: int
    limit: int
    start: Sequence[int]
    end: Sequence[int]
    size: Sequence[int]
    rank: Sequence[int]
    nodes: int = 0
    most: int = 0
    offset: list[int] = field(default_factory=list)

    def pack(self, most_nodes: int) -> Packed:
        """Looks at this many nodes at most; `offset` [N] holds the answer if there is one."""
        self.most, self.nodes = most_nodes, 0
        self.offset = [-1] * len(self.start)
        self._height, self._load = [0] * self.steps, [0] * self.steps
        self._trail: list[tuple[int, int, list[int]]] = []  # item or -1, first step, heights
        for i, size in enumerate(self.size):
            for t in range(self.start[i], self.end[i] + 1):
                self._load[t] += size
        return self._visit(sorted(range(len(self.start)), key=lambda i: self.rank[i]))

    def _visit(self, items: list[int]) -> Packed:
        if not items:
            return Packed.YES
        self.nodes += 1
        if self.nodes > self.most:
            return Packed.UNKNOWN
        parts = self._apart(items)
        if len(parts) == 1:
            return self._search(items)
        mark = len(self._trail)
        for part in parts:
            found = self._visit(part)
            if found != Packed.YES:
                self._undo(mark)
                return found
        return Packed.YES

    def _search(self, items: list[int]) -> Packed:
        if not self._possible(items):
            return Packed.NO
        v = self._narrowest(items)
        mark = len(self._trail)
        for i in v.items:
            self._raise(v.first, self.start[i] - 1, min(v.left, v.height + self.size[i]))
            self._place(i, v.height)
            found = self._visit([j for j in items if j != i])
            if found != Packed.NO:
                return found
            self._undo(mark)
        if not v.raised:
            return Packed.NO
        self._raise(v.first, v.last, min(v.left, v.right))
        found = self._visit(items)
        if found == Packed.NO:
            self._undo(mark)
        return found

    def _apart(self, items: list[int]) -> list[list[int]]:
        """Sets of items whose lives do not meet, not even over others."""
        parts: list[list[int]] = []
        until = -1
        for i in sorted(items, key=lambda i: (self.start[i], i)):
            if self.start[i] > until:
                parts.append([])
            parts[-1].append(i)
            until = max(until, self.end[i])
        return [sorted(p, key=lambda i: self.rank[i]) for p in parts]

    def _possible(self, items: list[int]) -> bool:
        """Does what is left fit, at each step, one above the other in order of lowest offsets?"""
        lowest = {i: max(self._height[self.start[i] : self.end[i] + 1]) for i in items}
        top = [0] * self.steps
        for i in sorted(items, key=lambda i: lowest[i]):
            for t in range(self.start[i], self.end[i] + 1):
                top[t] = max(top[t], lowest[i]) + self.size[i]
        return max(top) <= self.limit

    def _narrowest(self, items: list[int]) -> _Valley:
        """The valley with the fewest possibilities; of equals the lowest."""
        a = min(self.start[i] for i in items)
        until = max(self.end[i] for i in items)
        found: list[_Valley] = []
        left = self.limit
        while a <= until:
            b, height = a, self._height[a]
            while b < until and self._height[b + 1] == height:
                b += 1
            right = self._height[b + 1] if b < until else self.limit
            if left > height < right:
                found.append(self._valley(items, a, b, left, right))
            a, left = b + 1, height
        return min(found, key=lambda v: (len(v.items) + v.raised, v.height))

    def _valley(self, items: list[int], a: int, b: int, left: int, right: int) -> _Valley:
        height = self._height[a]

        def leftmost(i: int) -> bool:
            within = self.start[i] >= a and self.end[i] <= b
            high = min(left, height + self.size[i])
            return within and self._wasted(items, a, self.start[i] - 1, height, high)

        raised = self._wasted(items, a, b, height, min(left, right))
        return _Valley(a, b, height, left, right, list(filter(leftmost, items)), raised)

    def _wasted(self, items: list[int], first: int, last: int, low: int, high: int) -> bool:
        """May the room over these steps stay empty? Not if it is needed, or if an item fits there:
        what can be moved down need not be looked at."""
        if any(high + self._load[t] > self.limit for t in range(first, last + 1)):
            return False
        return not any(
            self.start[i] >= first and self.end[i] <= last and low + self.size[i] <= high
            for i in items
        )

    def _raise(self, first: int, last: int, height: int, item: int = -1) -> None:
        if first <= last:
            self._trail.append((item, first, self._height[first : last + 1]))
            self._height[first : last + 1] = [height] * (last + 1 - first)

    def _place(self, i: int, at: int) -> None:
        self._raise(self.start[i], self.end[i], at + self.size[i], i)
        self.offset[i] = at
        for t in range(self.start[i], self.end[i] + 1):
            self._load[t] -= self.size[i]

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            i, first, heights = self._trail.pop()
            self._height[first : first + len(heights)] = heights
            if i >= 0:
                self.offset[i] = -1
                for t in range(self.start[i], self.end[i] + 1):
                    self._load[t] += self.size[i]
