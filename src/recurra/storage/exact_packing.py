"""Pack items with fixed live ranges into one memory, or prove that they do not fit.

Branch and bound over the packings in which every item is as low as possible. Items are placed in
order of offset, then rank, each on top of the items that are alive with it; every packing can be
moved down to one of these (Moffitt, "MiniMalloc", ASPLOS 2023). Sets of items that are never alive
together are packed one after another. The plain twin of `mapping/engine/pack.h`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

NEVER = 2**63 - 1

Next = tuple[int, int, int]  # the lowest offset possible for an item, its rank, the item


class Packed(IntEnum):
    """The answer to whether the items fit."""

    NO = 0
    YES = 1
    UNKNOWN = 2  # the search ran out of nodes


@dataclass
class Packer:
    """Items [N]: their first and last steps, sizes, and ranks (a permutation; lower goes first).

    With `by_load`, items that are alive in the fullest step of their part go first, then by rank.
    """

    steps: int
    limit: int
    start: Sequence[int]
    end: Sequence[int]
    size: Sequence[int]
    rank: Sequence[int]
    by_load: bool = False
    nodes: int = 0
    offset: list[int] = field(default_factory=list)

    def pack(self, max_nodes: int) -> Packed:
        """Search at most this many nodes; `offset` [N] holds the packing if there is one."""
        items = list(range(len(self.start)))
        self._max_nodes, self.nodes = max_nodes, 0
        self.offset = [-1] * len(items)
        self._least = [0] * len(items)
        self._rank = list(self.rank)
        self._neighbors = [
            [j for j in items if j != i and start <= self.end[j] and self.start[j] <= end]
            for i, (start, end) in enumerate(zip(self.start, self.end, strict=True))
        ]
        return self._pack_parts(items, (0, -1, -1))

    def _pack_parts(self, items: list[int], after: Next) -> Packed:
        """Pack the sets of items that no chain of live ranges connects, one after the other.

        Each set is ranked anew, unless there is only one.
        """
        for part in self._components(items):
            if len(part) == len(items) and self.nodes:
                return self._search(items, after)
            before = self._rank.copy()
            if self.by_load:
                self._rank_by_load(part)
            found = self._search(part, (after[0], -1, -1))
            if found != Packed.YES:
                self._rank = before
                return found  # the caller undoes the placements
        return Packed.YES

    def _rank_by_load(self, part: list[int]) -> None:
        load = [0] * self.steps
        for i in part:
            for t in range(self.start[i], self.end[i] + 1):
                load[t] += self.size[i]
        fullest = {i: max(load[self.start[i] : self.end[i] + 1]) for i in part}
        for k, i in enumerate(sorted(part, key=lambda i: (-fullest[i], self.rank[i]))):
            self._rank[i] = k

    def _components(self, items: list[int]) -> list[list[int]]:
        parts: list[list[int]] = []
        until = -1
        for i in sorted(items, key=lambda i: (self.start[i], i)):
            if self.start[i] > until:
                parts.append([])
            parts[-1].append(i)
            until = max(until, self.end[i])
        return parts

    def _search(self, items: list[int], after: Next) -> Packed:
        """Place the remaining items of a part; none goes before `after`."""
        self.nodes += 1
        if self.nodes > self._max_nodes:
            return Packed.UNKNOWN
        # An item at or above the lowest top of the others leaves a gap into which one of them fits.
        roof = min(self._least[i] + self.size[i] for i in items)
        for placed in sorted((self._least[i], self._rank[i], i) for i in items):
            if placed < after or placed[0] >= roof:
                continue
            i = placed[2]
            rest = [j for j in items if j != i]
            before = self._least.copy()
            covered = self._place(placed)
            found = self._pack_parts(rest, placed) if self._possible(rest, placed) else Packed.NO
            if found == Packed.YES:
                return found
            for j in items:
                self.offset[j] = -1
            self._least = before
            if found == Packed.UNKNOWN or not covered:
                return found  # with nothing above it, no other place is better
        return Packed.NO

    def _place(self, placed: Next) -> bool:
        """Place an item; tell whether a remaining item will lie above it."""
        at, _, i = placed
        self.offset[i] = at
        above = [j for j in self._neighbors[i] if self.offset[j] < 0]
        for j in above:
            self._least[j] = max(self._least[j], at + self.size[i])
        return bool(above)

    def _possible(self, rest: list[int], placed: Next) -> bool:
        """Tell whether the remaining items fit, stacked at each step in order of lowest offsets."""
        lowest = {i: self._lowest(i, placed) for i in rest}
        if any(at + self.size[i] > self.limit for i, at in lowest.items()):
            return False
        top = [0] * self.steps
        for i in sorted(rest, key=lambda i: (lowest[i], self._rank[i])):
            for t in range(self.start[i], self.end[i] + 1):
                top[t] = max(top[t], lowest[i]) + self.size[i]
        return max(top) <= self.limit

    def _lowest(self, index: int, placed: Next) -> int:
        """The lowest offset of an item; a later item must lift one that was passed over."""
        if (self._least[index], self._rank[index], index) >= placed:
            return self._least[index]
        lifts = (j for j in self._neighbors[index] if self.offset[j] < 0)
        return min((max(self._least[j], placed[0]) + self.size[j] for j in lifts), default=NEVER)
