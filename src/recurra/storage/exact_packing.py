"""Packs items with fixed lives into one memory, or finds that it cannot: what minimalloc is asked.

Branch and bound over the packings in which everything is as low as it goes. Items are placed in
order of their offsets, of equal ones by rank, each on top of what its life meets; every packing can
be moved down to one of these (Moffitt, "MiniMalloc", ASPLOS 2023). Sets of items whose lives do not
meet are packed one after another. The plain twin of `mapping/engine/pack.h`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

NEVER = 2**63 - 1

Next = tuple[int, int, int]  # the lowest offset that is left to an item, its rank, the item


class Packed(IntEnum):
    """Can it be packed?"""

    NO = 0
    YES = 1
    UNKNOWN = 2  # the nodes are used up


@dataclass
class Packer:
    """Items [N]: their first and last steps, sizes, and ranks (a permutation; lower goes first).

    With `by_load` first goes what lives in the fullest step of its part, and then by rank.
    """

    steps: int
    limit: int
    start: Sequence[int]
    end: Sequence[int]
    size: Sequence[int]
    rank: Sequence[int]
    by_load: bool = False
    nodes: int = 0
    most: int = 0
    offset: list[int] = field(default_factory=list)

    def pack(self, most_nodes: int) -> Packed:
        """Looks at this many nodes at most; `offset` [N] holds the answer if there is one."""
        items = list(range(len(self.start)))
        self.most, self.nodes = most_nodes, 0
        self.offset = [-1] * len(items)
        self._least = [0] * len(items)
        self._rank = list(self.rank)
        self._meets = [[j for j in items if j != i and self._meet(i, j)] for i in items]
        return self._parts(items, (0, -1, -1))

    def _meet(self, index: int, j: int) -> bool:
        return self.start[index] <= self.end[j] and self.start[j] <= self.end[index]

    def _parts(self, items: list[int], after: Next) -> Packed:
        """Sets of items whose lives do not meet, not even over others, one after the other.

        Each is ranked anew, unless they are one set still.
        """
        for part in self._apart(items):
            if len(part) == len(items) and self.nodes:
                return self._search(items, after)
            before = self._rank.copy()
            if self.by_load:
                self._ranked(part)
            found = self._search(part, (after[0], -1, -1))
            if found != Packed.YES:
                self._rank = before
                return found  # who called takes back what was placed
        return Packed.YES

    def _ranked(self, part: list[int]) -> None:
        load = [0] * self.steps
        for i in part:
            for t in range(self.start[i], self.end[i] + 1):
                load[t] += self.size[i]
        fullest = {i: max(load[self.start[i] : self.end[i] + 1]) for i in part}
        for k, i in enumerate(sorted(part, key=lambda i: (-fullest[i], self.rank[i]))):
            self._rank[i] = k

    def _apart(self, items: list[int]) -> list[list[int]]:
        parts: list[list[int]] = []
        until = -1
        for i in sorted(items, key=lambda i: (self.start[i], i)):
            if self.start[i] > until:
                parts.append([])
            parts[-1].append(i)
            until = max(until, self.end[i])
        return parts

    def _search(self, items: list[int], after: Next) -> Packed:
        """Places what is left of a part; nothing goes before `after`."""
        self.nodes += 1
        if self.nodes > self.most:
            return Packed.UNKNOWN
        # An item at or above the lowest roof leaves a gap into which another one fits.
        roof = min(self._least[i] + self.size[i] for i in items)
        for placed in sorted((self._least[i], self._rank[i], i) for i in items):
            if placed < after or placed[0] >= roof:
                continue
            i = placed[2]
            rest = [j for j in items if j != i]
            before = self._least.copy()
            covered = self._place(placed)
            found = Packed.NO
            if self._possible(rest, placed):
                found = self._parts(rest, placed)
            if found == Packed.YES:
                return found
            for j in items:
                self.offset[j] = -1
            self._least = before
            if found == Packed.UNKNOWN or not covered:
                return found  # where nothing is above, no other place is better
        return Packed.NO

    def _place(self, placed: Next) -> bool:
        """Is anything left that will lie above it?"""
        at, _, i = placed
        self.offset[i] = at
        above = [j for j in self._meets[i] if self.offset[j] < 0]
        for j in above:
            self._least[j] = max(self._least[j], at + self.size[i])
        return bool(above)

    def _possible(self, rest: list[int], placed: Next) -> bool:
        """Does what is left fit, at each step, one above the other in order of lowest offsets?"""
        lowest = {i: self._lowest(i, placed) for i in rest}
        if any(at + self.size[i] > self.limit for i, at in lowest.items()):
            return False
        top = [0] * self.steps
        for i in sorted(rest, key=lambda i: (lowest[i], self._rank[i])):
            for t in range(self.start[i], self.end[i] + 1):
                top[t] = max(top[t], lowest[i]) + self.size[i]
        return max(top) <= self.limit

    def _lowest(self, index: int, placed: Next) -> int:
        """The lowest place of an item: one that was passed over has to be lifted by a later one."""
        if (self._least[index], self._rank[index], index) >= placed:
            return self._least[index]
        lifts = (j for j in self._meets[index] if self.offset[j] < 0)
        return min((max(self._least[j], placed[0]) + self.size[j] for j in lifts), default=NEVER)
