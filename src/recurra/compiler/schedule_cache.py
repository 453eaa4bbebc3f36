"""Cache the schedules of one compilation, so that each is computed once.

Passes choose by the loops that a graph would run in, and many return their graph unchanged: the
schedule that the last one used is then the schedule of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from recurra.ir.expr import Expr
from recurra.ir.graph import Graph
from recurra.schedule.allen_kennedy import find_schedule
from recurra.schedule.tree import Schedule, phases
from recurra.transforms.compile_context import Phase


@dataclass(frozen=True)
class _Entry:
    """A schedule with its arguments; graphs are immutable, and compared by identity."""

    graph: Graph
    options: tuple[Mapping[str, int], frozenset[str], Mapping[str, Expr]]
    schedule: Schedule


@dataclass
class ScheduleCache:
    """A cache of schedules that lives as long as the compilation."""

    entries: list[_Entry] = field(default_factory=list[_Entry])

    def of(
        self,
        graph: Graph,
        sizes: Mapping[str, int],
        axes: frozenset[str] = frozenset(),
        guarded: Mapping[str, Expr] = MappingProxyType({}),
    ) -> Schedule:
        """The schedule of a graph; raises ScheduleError if there is none."""
        axes &= {d for n in graph.nodes.values() for d in n.domain.dims}
        options = (dict(sizes), axes, dict(guarded))
        for entry in self.entries:
            if entry.graph is graph and entry.options == options:
                return entry.schedule
        new = find_schedule(graph, sizes, axes, guarded=guarded)
        self.entries.append(_Entry(graph, options, new))
        return new

    def __call__(
        self, graph: Graph, sizes: Mapping[str, int], free: frozenset[str]
    ) -> Mapping[str, Phase]:
        """The loops in which each equation runs, with the dims in `free` as axes."""
        return phases(self.of(graph, sizes, free))
