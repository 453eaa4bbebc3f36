"""A statement that may run in several loops runs where least memory is held.

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

from recurra.ir.min_cut import ONE, OTHER, Network
from recurra.schedule.dependences import Dependence

Apart = Callable[[Dependence, int | None, int | None], int]


@dataclass
class LoopPlacement:
    """Statements in loops along a dim, one loop after the other.

    level    which loop a statement is in, counted in the order they run
    kind     the direction of that loop; 0: none
    free     those that may move; the others are on cycles, or belong to a call
    apart    1 where a reader's loop must wait for that of its source, for two directions
    """

    edges: list[Dependence]
    level: dict[str, int]
    kind: dict[str, int | None]
    free: list[str]
    weight: Callable[[str], float]
    apart: Apart

    def __post_init__(self) -> None:
        self.into: dict[str, list[Dependence]] = {s: [] for s in self.level}
        self.outof: dict[str, list[Dependence]] = {s: [] for s in self.level}
        for e in self.edges:
            self.into[e.sink].append(e)
            self.outof[e.source].append(e)
        self.free = [s for s in self.free if self.outof[s]]

    def late(self) -> None:
        """Moves what may move, until nothing does."""
        while any([self.move(s) for s in self.free]) or self.move_group():
            pass  # what one move holds longer is there for the next

    def fits(
        self, text: str, at: int, kind: int | None, group: frozenset[str] = frozenset()
    ) -> bool:
        """May a statement run in loop `at`, of direction `kind`, with all of `group`?"""
        for e in self.into[text]:
            if e.source in group:
                if self.apart(e, kind, kind):
                    return False
            elif self.level[e.source] + self.apart(e, self.kind[e.source], kind) > at:
                return False
        return all(
            e.sink in group or self.level[e.sink] - self.apart(e, kind, self.kind[e.sink]) >= at
            for e in self.outof[text]
        )

    def move(self, text: str) -> bool:
        """Moves a statement to the loop of its first reader, where that holds no more memory."""
        first = min(self.outof[text], key=lambda e: self.level[e.sink])
        kind = self.kind[first.sink]
        if self.kind[text] == 0 or not kind:
            kind = self.kind[text]
        target = min(
            self.level[e.sink] - self.apart(e, kind, self.kind[e.sink]) for e in self.outof[text]
        )
        if target <= self.level[text] or not self.fits(text, target, kind):
            return False
        held = {
            x
            for x in (e.source for e in self.into[text])
            if self.kind[x]
            and self.level[x] < target
            and max(self.level[e.sink] for e in self.outof[x]) < target
        }
        if self.into[text] and sum(map(self.weight, held)) > self.weight(text):
            return False
        self.level[text], self.kind[text] = target, kind
        return True

    def move_group(self) -> bool:
        """Moves the statements that together hold least if they run in a later loop."""
        for at, kind in sorted({(self.level[s], k) for s, k in self.kind.items() if k}):
            group = self.candidates(at, kind)
            chosen = self.cheapest(group, at) if group else set[str]()
            for s in chosen:
                self.level[s], self.kind[s] = at, kind
            if chosen:
                return True
        return False

    def candidates(self, at: int, kind: int) -> frozenset[str]:
        """Statements of earlier loops that could all run in loop `at`."""
        group = frozenset(s for s in self.free if self.kind[s] and self.level[s] < at)
        while stray := {s for s in group if not self.fits(s, at, kind, group)}:
            group -= stray
        return group

    def cheapest(self, group: frozenset[str], at: int) -> set[str]:
        """Choose those of `group` that move to loop `at`, if less is then held than now."""
        network, now = Network(), 0.0
        sources = {e.source for s in group for e in self.into[s]}
        for x in sorted(group | sources):  # (x,): held until `at`
            if not self.kind[x]:
                continue
            after = [e.sink for e in self.outof[x]]
            held = any(s not in group and self.level[s] >= at for s in after)
            if x not in group:
                network.edge(ONE, x)
                if held:
                    continue
            elif held:
                now += self.weight(x)
            network.edge(x, (x,), self.weight(x))
            if held:
                network.edge((x,), OTHER)
            for s in after:
                if s in group:
                    network.edge((x,), s)
                    if x in group:
                        network.edge(s, x)  # it does not move without its readers
        stay, cost = network.one_side()
        return {s for s in group if s not in stay} if cost < now else set()
