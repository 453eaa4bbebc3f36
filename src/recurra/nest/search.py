"""Searches over action sequences (LoopTune, section 4): greedy, beam, random, exhaustive.

Each queries an evaluator for the GFLOPS of nests. Children are ranked by GFLOPS; the published
beams sort them by the name of the action, which is why those of width 2 found little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from recurra.errors import RecurraError
from recurra.nest.actions import Actions
from recurra.nest.loops import Nest

Evaluate = Callable[[Nest], float]
Clock = Callable[[], float]

FEW = 6  # nests in a ranking


class Budget:
    """A budget of seconds, from now on."""

    def __init__(self, seconds: float, clock: Clock = time.perf_counter) -> None:
        self.seconds, self.clock, self.begin = seconds, clock, clock()

    def spent(self) -> float:
        return self.clock() - self.begin

    def left(self, share: float = 1.0) -> float:
        """Return the seconds left of a share of the budget; negative if more was spent."""
        return share * self.seconds - self.spent()


@dataclass(frozen=True)
class FoundNest:
    """The best nest of a search, and the search's statistics."""

    nest: Nest
    gflops: float
    seconds: float
    evaluated: int
    """Distinct nests"""
    finished: bool
    """Whether the search ended by itself, before its time was up"""
    trace: tuple[tuple[float, float], ...]
    """(seconds, GFLOPS) of every improvement"""
    ranking: tuple[tuple[float, str], ...]
    """(GFLOPS, order) of the best few; one of those that share a measurement"""


class _TimeUp(Exception):
    """The end of a search's budget, which unwinds it."""


@dataclass
class SearchRun:
    """The state of one search: its budget, and the nests evaluated so far."""

    evaluate: Evaluate
    actions: Actions
    budget: Budget
    tell: Callable[[float, float, int], None] | None = None
    """Called with (seconds, best GFLOPS, evaluated) after every new nest."""
    seen: dict[str, float] = field(default_factory=dict)
    best: tuple[float, Nest] | None = None
    trace: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, nest: Nest) -> float:
        """Return a nest's GFLOPS; end the search if the time is up and one nest is known."""
        if self.best and self.budget.left() < 0:
            raise _TimeUp
        key = nest.order
        if key not in self.seen:
            self.seen[key] = gflops = self.evaluate(nest)
            if self.best is None or gflops > self.best[0]:
                self.best = gflops, nest
                self.trace.append((self.budget.spent(), gflops))
            if self.tell:
                self.tell(self.budget.spent(), self.best[0], len(self.seen))
        return self.seen[key]

    def ranked(self, nest: Nest) -> list[tuple[float, Nest]]:
        """Return (GFLOPS, nest) of the nests one action away, best first."""
        children = [(self(n), n) for n in self.actions.successors(nest).values()]
        return sorted(children, key=lambda child: -child[0])


SearchStrategy = Callable[[SearchRun, Nest, Random], None]
"""Explores from a nest by calling the run; returns when nothing is left."""


def search_nests(
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
    """Return the best nest that `strategy` finds from `start` within `seconds`."""
    run = SearchRun(evaluate, actions, Budget(seconds, clock), tell)
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
    spent, trace = run.budget.spent(), tuple(run.trace)
    return FoundNest(nest, gflops, spent, len(run.seen), finished, trace, ranking)


def greedy(lookahead: int) -> SearchStrategy:
    """Step toward the best nest within `lookahead` actions, as long as it is better."""

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
    """Yield (GFLOPS, the path) of every nest within `depth` actions."""
    for after in run.actions.successors(nest).values():
        yield run(after), [after]
        if depth > 1:
            for gflops, path in _within(run, after, depth - 1):
                yield gflops, [after, *path]


def beam_dfs(width: int) -> SearchStrategy:
    """Depth first: the `width` best children of every nest, the best one first."""

    def strategy(run: SearchRun, start: Nest, random: Random) -> None:
        deepest: dict[tuple[str, int], int] = {}

        def explore(nest: Nest, left: int) -> None:
            key = (nest.order, nest.cursor)
            if left <= deepest.get(key, 0):
                return  # it was explored with as many actions left
            deepest[key] = left
            for _, child in run.ranked(nest)[:width]:
                explore(child, left - 1)

        explore(start, run.actions.steps)

    return strategy


def beam_bfs(width: int) -> SearchStrategy:
    """Breadth first: the `width` best children of every nest of a layer are the next layer."""

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
    """Walk at random until the time is up or a hundred episodes in a row found nothing new."""
    idle = 0
    while idle < 100:
        nest, known = start, len(run.seen)
        for _ in range(run.actions.steps):
            children = list(run.actions.successors(nest).values())
            if not children:
                break
            nest = random.choice(children)
            run(nest)
        idle = 0 if len(run.seen) > known else idle + 1


def exhaustive(run: SearchRun, start: Nest, random: Random) -> None:
    """Evaluate every nest that an episode can reach: the oracle of a small space."""
    for nest in reachable(start, run.actions):
        run(nest)


def reachable(start: Nest, actions: Actions) -> Iterator[Nest]:
    """Yield every (nest, cursor) within the actions of one episode, nearest first, each once."""
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
