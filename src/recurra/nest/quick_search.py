"""A search for a good nest within a second or less: the cheapest tiles, a beam, and packing.

    begin, tiles  →  the fastest of them  →  a beam from there  →  inputs packed  →  the best few,
    measured again in turns

A search alone returns its luckiest measurement; a fifth of the time is for measuring again. Time is
process CPU time, of which other processes take none.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np

from recurra.errors import ScheduleError
from recurra.nest.actions import Actions
from recurra.nest.default_schedule import tiles
from recurra.nest.executable_memory import NestKernel
from recurra.nest.loops import Nest, scheduled
from recurra.nest.measure import Evaluator, Protocol
from recurra.nest.packing import packings
from recurra.nest.problem import expect_seconds
from recurra.nest.search import FEW, Budget, Clock, search_nests, strategy
from recurra.nest.target import VectorTarget, host_target
from recurra.nest.threads import Team

BEAM = "beam4bfs"
SEARCHED, PACKED = 0.7, 0.8  # shares of the time at which these phases end
ONCE = 0.02  # share of the time for a measurement


def improve_nest(
    begin: Nest,
    on: VectorTarget | None = None,
    *,
    seconds: float = 1.0,
    actions: Actions | None = None,
    tiled: bool = True,
    clock: Clock = time.process_time,
) -> Nest:
    """Return the fastest nest that is found within `seconds`, `begin` at worst.

    Without `tiled`, only nests that `actions` reach from `begin`.
    """
    if not isinstance(begin, Nest):  # pyright: ignore[reportUnnecessaryIsInstance] a user's
        raise ScheduleError.at_user_line(
            f"recurra.nest.improve_nest is given {begin!r:.60}",
            facts=f"it takes a Nest, not a {type(begin).__name__}",
            hint="begin with recurra.nest.untiled(problem)",
        )
    expect_seconds(seconds, "improve_nest")
    on = on or host_target()
    once = Protocol(seconds=min(Protocol.seconds, seconds * ONCE))
    budget = Budget(seconds, clock)
    run = _QuickSearch(Evaluator(begin.problem, on, once, keep=FEW), budget)
    run.add(begin)
    for nest in tiles(begin.problem, on) if tiled else ():  # a generator
        if budget.left(SEARCHED) <= 0:
            break
        run.add(nest)
    if (left := budget.left(SEARCHED)) > 0:
        start = replace(run.best, packs=())  # annotations come last
        rules = actions or Actions()
        found = search_nests(strategy(BEAM), start, run.evaluate, rules, seconds=left, clock=clock)
        for _, order in found.ranking:
            run.add(scheduled(begin.problem, order))
    for nest in packings(run.best) if tiled else ():
        if budget.left(PACKED) > 0:
            run.add(nest)
    return run.fastest()


@dataclass
class _QuickSearch:
    """The state of a search: the nests measured so far, and the time left."""

    evaluate: Evaluator
    budget: Budget
    known: dict[str, tuple[float, Nest]] = field(default_factory=dict[str, tuple[float, Nest]])

    def add(self, nest: Nest) -> None:
        self.known[nest.order] = self.evaluate(nest), nest

    @property
    def best(self) -> Nest:
        return max(self.known.values(), key=lambda x: x[0])[1]

    def fastest(self) -> Nest:
        """Measure the best few in turns for as long as there is time; return the fastest."""
        once = {gflops: nest for gflops, nest in self.known.values()}
        few = [nest for _, nest in sorted(once.items(), key=lambda x: -x[0])[:FEW]]
        workload, protocol = self.evaluate.workload, Protocol(runs=1, hopeless=np.inf)
        kernels, times, measured = list[NestKernel | Team](), list[list[float]](), list[Nest]()
        for nest in few:
            if self.budget.left() < 0 and kernels:
                break
            try:
                kernels.append(self.evaluate.loaded(nest))
            except ScheduleError:  # the first nest of a search may be too much code
                continue
            times.append([])
            measured.append(nest)
        while self.budget.left() > 0 and kernels:
            for loaded, seconds in zip(kernels, times, strict=True):
                seconds.append(workload.measure(loaded, protocol).seconds)
        if not times or not times[0]:
            return few[0]
        return measured[int(np.argmin([np.median(seconds) for seconds in times]))]
