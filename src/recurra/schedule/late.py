"""late: a statement that may run in several loops runs where least memory is held.

Every free statement has been given the earliest loop that can run it. Here they move to the loops
of their readers: one by one, as long as no more is held, then whole groups of them, where that is
less: what a later loop reads of an earlier one is held in between, and the cheapest set of such
values is a minimum cut.

    for t: k[t] = f(o[t]);  v[t] = g(k[t])           for t: ..
    for t backwards: a[t] = v[t] + a[t+1] · k[t]  →  for t backwards: k[t]; v[t]; a[t]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recurra.ir.cut import ONE, OTHER, Network
from recurra.schedule.tree import Read

Apart = Callable[[Read, int | None, int | None], int]


@dataclass
class Placement:
    """Parts of a program (statements of one cycle) in loops, one after the other along a dim.

    kinds    the direction of a part's loop; 0: none
    level    which loop it is in, counted in the order they run
    apart    1 where a reader's loop must wait for that of its source, for two directions
    """

    into: list[list[Read]]
    of: dict[str, int]
    kinds: list[int | None]
    level: list[int]
    free: set[int]
    weight: Callable[[str], float]
    calls: set[str]
    apart: Apart

    def __post_init__(self) -> None:
        self.outof: list[list[Read]] = [[] for _ in self.level]
        for es in self.into:
            for e in es:
                self.outof[self.of[e.source]].append(e)
        self.weights = [  # what is read of a part, elsewhere
            sum(map(self.weight, {e.source for e in es})) for es in self.outof
        ]
        self.order = [
            k
            for k in reversed(range(len(self.level)))
            # an item of a call is taken where the call is made
            if k in self.free
            and self.outof[k]
            and not any(e.source in self.calls for e in self.into[k])
        ]

    def late(self) -> None:
        """Moves what may move, until nothing does."""
        while any([self.move(k) for k in self.order]) or self.move_group():
            pass  # what one move holds longer is there for the next

    def last(self, k: int) -> int:
        """The last loop that reads a part."""
        return max((self.level[self.of[e.sink]] for e in self.outof[k]), default=self.level[k])

    def fits(self, k: int, at: int, kind: int | None, group: frozenset[int] = frozenset()) -> bool:
        """May part k run in loop `at`, of direction `kind`, with all of `group`?"""
        for e in self.into[k]:
            source = self.of[e.source]
            if source in group:
                if self.apart(e, kind, kind):
                    return False
            elif self.level[source] + self.apart(e, self.kinds[source], kind) > at:
                return False
        for e in self.outof[k]:
            sink = self.of[e.sink]
            if sink not in group and self.level[sink] - self.apart(e, kind, self.kinds[sink]) < at:
                return False
        return True

    def move(self, k: int) -> bool:
        """Moves a part to the loop of its first reader, where that holds no more memory."""
        first = min(self.outof[k], key=lambda e: self.level[self.of[e.sink]])
        kind = self.kinds[self.of[first.sink]]
        if self.kinds[k] == 0 or not kind:
            kind = self.kinds[k]
        target = min(
            self.level[self.of[e.sink]] - self.apart(e, kind, self.kinds[self.of[e.sink]])
            for e in self.outof[k]
        )
        if target <= self.level[k] or not self.fits(k, target, kind):
            return False
        held = {
            x
            for x in (self.of[e.source] for e in self.into[k])
            if self.kinds[x] and self.last(x) < target and self.level[x] < target
        }
        if self.into[k] and sum(self.weights[x] for x in held) > self.weights[k]:
            return False
        self.level[k], self.kinds[k] = target, kind
        return True

    def move_group(self) -> bool:
        """Moves the parts that together hold least if they run in a later loop."""
        loops = sorted({(self.level[k], kind) for k, kind in enumerate(self.kinds) if kind})
        for at, kind in loops:
            group = self.candidates(at, kind)
            chosen = self.cheapest(group, at) if group else set[int]()
            if chosen:
                for k in chosen:
                    self.level[k], self.kinds[k] = at, kind
                return True
        return False

    def candidates(self, at: int, kind: int) -> frozenset[int]:
        """Parts of earlier loops that could all run in loop `at`."""
        group = frozenset(k for k in self.order if self.kinds[k] and self.level[k] < at)
        while stray := {k for k in group if not self.fits(k, at, kind, group)}:
            group -= stray
        return group

    def cheapest(self, group: frozenset[int], at: int) -> set[int]:
        """Those of `group` that move to loop `at`, if less is then held than now."""
        network = Network()
        now = 0.0
        sources = {self.of[e.source] for k in group for e in self.into[k]}
        for x in sorted(group | sources):
            if not self.kinds[x]:
                continue
            after = [self.of[e.sink] for e in self.outof[x]]
            held = any(k not in group and self.level[k] >= at for k in after)
            if x not in group:
                network.edge(ONE, x)
                if held:
                    continue
            elif held:
                now += self.weights[x]
            network.edge(x, ("held", x), self.weights[x])
            if held:
                network.edge(("held", x), OTHER)
            for k in after:
                if k in group:
                    network.edge(("held", x), k)
                    if x in group:
                        network.edge(k, x)  # it does not move without its readers
        stay, cost = network.one_side()
        return {k for k in group if k not in stay} if cost < now else set()
