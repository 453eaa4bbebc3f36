"""Searches over action sequences (LoopTune, section 4): greedy, beam, random, exhaustive.

Each asks an evaluator for GFLOPS of nests and keeps the best it has seen. Children are ranked by
GFLOPS; the published beams sort them by the name of the action, which is why widths 2 found little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from recurra.errors import RecurraError
from recurra.nest.actions import Actions
from recurra.nest.loops import Nest

Evaluate = Callable[[Nest], float]
Clock = Callable[[], float]

FEW = 6  # nests in a ranking


@dataclass(frozen=True)
class FoundNest:
    """The best nest of a search, and how it was come by."""

    nest: Nest
    gflops: float
    seconds: float
    evaluated: int
    """Different nests whose GFLOPS were asked for."""
    finished: bool
    """Did the search end by itself, before its time was up?"""
    trace: tuple[tuple[float, float], ...]
    """(seconds, GFLOPS) of every improvement"""
    ranking: tuple[tuple[float, str], ...]
    """(GFLOPS, order) of the best few; of nests that share a measurement, one"""


class _TimeUp(Exception):
    """Unwinds a search."""


@dataclass
class SearchRun:
    """One search under way: what it may still spend, what it has seen."""

    evaluate: Evaluate
    actions: Actions
    seconds: float = float("inf")
    clock: Clock = time.perf_counter
    tell: Callable[[float, float, int], None] | None = None
    """Told (seconds, best GFLOPS, evaluated) after every new nest."""
    seen: dict[str, float] = field(default_factory=dict)
    best: tuple[float, Nest] | None = None
    trace: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin = self.clock()

    def spent(self) -> float:
        return self.clock() - self.begin

    def __call__(self, nest: Nest) -> float:
        """GFLOPS; raises when the time is up, but not before the first nest is known."""
        if self.best and self.spent() > self.seconds:
            raise _TimeUp
        key = nest.order
        if key not in self.seen:
            self.seen[key] = gflops = self.evaluate(nest)
            if self.best is None or gflops > self.best[0]:
                self.best = gflops, nest
                self.trace.append((self.spent(), gflops))
            if self.tell:
                self.tell(self.spent(), self.best[0], len(self.seen))
        return self.seen[key]

    def ranked(self, nest: Nest) -> list[tuple[float, Nest]]:
        """The nests one action away, best first."""
        ways = [(self(n), n) for n in self.actions.successors(nest).values()]
        return sorted(ways, key=lambda way: -way[0])


class SearchStrategy(Protocol):
    """A strategy: explores from a nest, by asking the run; returns when it has nothing left."""

    def __call__(self, run: SearchRun, start: Nest, random: Random) -> None: ...


def search(
    strategy: SearchStrategy,
    start: Nest,
    evaluate: Evaluate,
    actions: Actions,
    *,
    seconds: float = 60.0,
    seed: int = 0,
    clock: Clock = time.perf_counter,
    tell: Callable[[float, float, int], None] | None = None,
) -> FoundNest:
    """The best nest that `strategy` finds from `start` within `seconds`."""
    run = SearchRun(evaluate, actions, seconds, clock, tell)
    finished = True
    try:
        run(start)
        strategy(run, start, Random(seed))
    except _TimeUp:
        finished = False
    assert run.best is not None
    gflops, nest = run.best
    once = {g: order for order, g in reversed(run.seen.items())}
    ranking = tuple(sorted(once.items(), reverse=True)[:FEW])
    return FoundNest(nest, gflops, run.spent(), len(run.seen), finished, tuple(run.trace), ranking)


def greedy(lookahead: int) -> SearchStrategy:
    """Goes to the first step toward the best nest within `lookahead` actions, if it is better."""

    def strategy(run: SearchRun, start: Nest, random: Random) -> None:
        here, gflops = start, run(start)
        for _ in range(run.actions.steps):
            reached = list(_within(run, here, lookahead))
            if not reached:
                return
            best, steps = max(reached, key=lambda r: (r[0], -len(r[1])))
            if best <= gflops:
                return
            here = steps[0]
            gflops = run(here)

    return strategy


def _within(run: SearchRun, nest: Nest, depth: int) -> Iterator[tuple[float, list[Nest]]]:
    """(GFLOPS, the nests on the way) of everything within `depth` actions."""
    for after in run.actions.successors(nest).values():
        yield run(after), [after]
        if depth > 1:
            for gflops, way in _within(run, after, depth - 1):
                yield gflops, [after, *way]


def beam_dfs(width: int) -> SearchStrategy:
    """Depth first: from every nest the `width` best children, the best one to its end first."""

    def strategy(run: SearchRun, start: Nest, random: Random) -> None:
        deepest: dict[tuple[str, int], int] = {}

        def explore(nest: Nest, left: int) -> None:
            key = (nest.order, nest.cursor)
            if left <= deepest.get(key, 0):
                return  # was explored with as many actions left
            deepest[key] = left
            for _, child in run.ranked(nest)[:width]:
                explore(child, left - 1)

        explore(start, run.actions.steps)

    return strategy


def beam_bfs(width: int) -> SearchStrategy:
    """Breadth first: of every nest of a layer the `width` best children make the next layer."""

    def strategy(run: SearchRun, start: Nest, random: Random) -> None:
        layer, seen = [start], {(start.order, start.cursor)}
        for _ in range(run.actions.steps):
            children: list[Nest] = []
            for nest in layer:
                for _, child in run.ranked(nest)[:width]:
                    if (key := (child.order, child.cursor)) not in seen:
                        seen.add(key)
                        children.append(child)
            layer = children

    return strategy


def random_walks(run: SearchRun, start: Nest, random: Random) -> None:
    """Episodes of random legal actions, until time is up or a hundred in a row saw nothing new."""
    idle = 0
    while idle < 100:
        nest, known = start, len(run.seen)
        for _ in range(run.actions.steps):
            ways = list(run.actions.successors(nest).values())
            if not ways:
                break
            nest = random.choice(ways)
            run(nest)
        idle = 0 if len(run.seen) > known else idle + 1


def exhaustive(run: SearchRun, start: Nest, random: Random) -> None:
    """Every nest that an episode can reach: the oracle of a small space."""
    for nest in reachable(start, run.actions):
        run(nest)


def reachable(start: Nest, actions: Actions) -> Iterator[Nest]:
    """Every (nest, cursor) within the actions of one episode, nearest first, each once."""
    seen, layer = {(start.order, start.cursor)}, [start]
    yield start
    for _ in range(actions.steps):
        children: list[Nest] = []
        for nest in layer:
            for child in actions.successors(nest).values():
                if (key := (child.order, child.cursor)) not in seen:
                    seen.add(key)
                    children.append(child)
                    yield child
        layer = children


SEARCHES: Mapping[str, SearchStrategy] = {
    "greedy1": greedy(1),
    "greedy2": greedy(2),
    "beam2dfs": beam_dfs(2),
    "beam4dfs": beam_dfs(4),
    "beam2bfs": beam_bfs(2),
    "beam4bfs": beam_bfs(4),
    "random": random_walks,
    "exhaustive": exhaustive,
}


def strategy(name: str) -> SearchStrategy:
    """Find a strategy by name: those of the paper, and beams of any width, as in beam6bfs."""
    if name in SEARCHES:
        return SEARCHES[name]
    kind, width = name[-3:], name.removeprefix("beam")[:-3]
    if name.startswith("beam") and kind in ("bfs", "dfs") and width.isdecimal() and int(width):
        return (beam_bfs if kind == "bfs" else beam_dfs)(int(width))
    raise RecurraError(
        f"there is no search {name!r}",
        facts=f"there are: {', '.join(SEARCHES)}, and beams of any width, as in beam6bfs",
    )
