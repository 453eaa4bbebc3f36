"""Sink statements that may run in several loops to where they hold the least memory.

Every free statement starts in the earliest loop that can run it. Statements move to the loops of
their readers: one by one while that holds no more memory, then in groups if that holds less.
A value of one loop that a later loop reads is held in between; the cheapest set of such values is
a minimum cut.

    for t: k[t] = f(o[t]);  v[t] = g(k[t])           for t: ..
    for t backwards: a[t] = v[t] + a[t+1] · k[t]  →  for t backwards: k[t]; v[t]; a[t]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recurra.ir.min_cut import ONE, OTHER, Network
from recurra.schedule.dependences import Dependence


@dataclass
class LoopPlacement:
    """Statements in loops along a dim, one loop after the other.

    Args:
        level: the loop of each statement, counted in the order in which loops run.
        kind: the direction of that loop; 0 outside of loops.
        free: the statements that may move; others are on cycles, or belong to a call.
        must_wait: 1 if a reader's loop must wait for its source's, given their directions.
    """

    edges: list[Dependence]
    level: dict[str, int]
    kind: dict[str, int | None]
    free: list[str]
    weight: Callable[[str], float]
    must_wait: Callable[[Dependence, int | None, int | None], int]

    def __post_init__(self) -> None:
        self.into: dict[str, list[Dependence]] = {s: [] for s in self.level}
        self.out: dict[str, list[Dependence]] = {s: [] for s in self.level}
        for e in self.edges:
            self.into[e.sink].append(e)
            self.out[e.source].append(e)
        self.free = [s for s in self.free if self.out[s]]

    def sink(self) -> None:
        """Move statements until no move helps."""
        while any([self.move(s) for s in self.free]) or self.move_group():
            pass  # a value that one move holds longer costs the next nothing

    def fits(
        self, text: str, at: int, kind: int | None, group: frozenset[str] = frozenset()
    ) -> bool:
        """Tell whether a statement may run in loop `at`, of direction `kind`, with `group`."""
        for e in self.into[text]:
            if e.source in group:
                if self.must_wait(e, kind, kind):
                    return False
            elif self.level[e.source] + self.must_wait(e, self.kind[e.source], kind) > at:
                return False
        return all(
            e.sink in group or self.level[e.sink] - self.must_wait(e, kind, self.kind[e.sink]) >= at
            for e in self.out[text]
        )

    def move(self, text: str) -> bool:
        """Move a statement to the loop of its first reader, if that holds no more memory."""
        first = min(self.out[text], key=lambda e: self.level[e.sink])
        kind = self.kind[first.sink]
        if self.kind[text] == 0 or not kind:
            kind = self.kind[text]
        target = min(
            self.level[e.sink] - self.must_wait(e, kind, self.kind[e.sink]) for e in self.out[text]
        )
        if target <= self.level[text] or not self.fits(text, target, kind):
            return False
        held = {
            x
            for x in (e.source for e in self.into[text])
            if self.kind[x]
            and self.level[x] < target
            and max(self.level[e.sink] for e in self.out[x]) < target
        }
        if self.into[text] and sum(map(self.weight, held)) > self.weight(text):
            return False
        self.level[text], self.kind[text] = target, kind
        return True

    def move_group(self) -> bool:
        """Move the statements that together hold least if they run in a later loop."""
        for at, kind in sorted({(self.level[s], k) for s, k in self.kind.items() if k}):
            group = self.candidates(at, kind)
            if moved := self.cheapest(group, at) if group else set[str]():
                self.level |= dict.fromkeys(moved, at)
                self.kind |= dict.fromkeys(moved, kind)
                return True
        return False

    def candidates(self, at: int, kind: int) -> frozenset[str]:
        """Statements of earlier loops that could all run in loop `at`."""
        group = frozenset(s for s in self.free if self.kind[s] and self.level[s] < at)
        while misfits := {s for s in group if not self.fits(s, at, kind, group)}:
            group -= misfits
        return group

    def cheapest(self, group: frozenset[str], at: int) -> set[str]:
        """The statements of `group` to move to loop `at` to hold the least; none if now is best."""
        network, now = Network(), 0.0
        sources = {e.source for s in group for e in self.into[s]}
        for x in sorted(group | sources):  # (x,): held until `at`
            if not self.kind[x]:
                continue
            readers = [e.sink for e in self.out[x]]
            held = any(s not in group and self.level[s] >= at for s in readers)
            if x not in group:
                network.edge(ONE, x)
                if held:
                    continue
            elif held:
                now += self.weight(x)
            network.edge(x, (x,), self.weight(x))
            if held:
                network.edge((x,), OTHER)
            for s in readers:
                if s in group:
                    network.edge((x,), s)
                    if x in group:
                        network.edge(s, x)  # it does not move without its readers
        stay, cost = network.source_side()
        return {s for s in group if s not in stay} if cost < now else set()
