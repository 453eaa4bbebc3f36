"""The schedules of one compilation: each is made once, however many passes ask for it.

Passes choose by the loops that a graph would run in, and many of them give back the graph that they
got: what the last one asked for is then the schedule of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from recurra.ir.expr import Expr
from recurra.ir.graph import Graph
from recurra.schedule.allen_kennedy import schedule
from recurra.schedule.tree import Schedule, phases
from recurra.transforms.compile_context import Phase


@dataclass(frozen=True)
class _MadeSchedule:
    """A schedule, and what it was made of; a graph is immutable, and compared by its identity."""

    graph: Graph
    asked: tuple[Mapping[str, int], frozenset[str], Mapping[str, Expr]]
    schedule: Schedule


@dataclass
class Schedules:
    """Makes schedules, and keeps them until the compilation ends."""

    made: list[_MadeSchedule] = field(default_factory=list[_MadeSchedule])

    def of(
        self,
        graph: Graph,
        sizes: Mapping[str, int],
        axes: frozenset[str] = frozenset(),
        guarded: Mapping[str, Expr] = MappingProxyType({}),
    ) -> Schedule:
        """The schedule of a graph (`levels.schedule`); raises ScheduleError if there is none."""
        axes &= {d for n in graph.nodes.values() for d in n.domain.dims}
        asked = (dict(sizes), axes, dict(guarded))
        for m in self.made:
            if m.graph is graph and m.asked == asked:
                return m.schedule
        found = schedule(graph, sizes, axes, guarded=guarded)
        self.made.append(_MadeSchedule(graph, asked, found))
        return found

    def __call__(
        self, graph: Graph, sizes: Mapping[str, int], free: frozenset[str]
    ) -> Mapping[str, Phase]:
        """The loop in which every equation runs, with the dims in `free` as axes."""
        return phases(self.of(graph, sizes, free))
