"""Check that a schedule is legal: every dependence must go forward in time.

Independent of how the schedule was found: producer and consumer are compared loop by loop, first by
intervals and then, if these do not decide, exactly by isl.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from recurra.ir.expr import TRUE, substitute
from recurra.ir.graph import index_at
from recurra.ir.statement import StatementGraph
from recurra.polyhedral import isl
from recurra.polyhedral.dependence_distance import Lag, lag
from recurra.polyhedral.extent import at_sizes
from recurra.schedule.dependences import Dependence, dependences
from recurra.schedule.tree import Loop, Path, Schedule, common_loops

NO_SIZES: Mapping[str, int] = MappingProxyType({})


def violations(schedule: Schedule, sizes: Mapping[str, int]) -> list[Dependence]:
    """The dependences that are violated at some point; empty for a legal schedule."""
    paths = schedule.paths()
    return [r for r in dependences(schedule.statements) if not _forward(schedule, paths, r, sizes)]


def _forward(
    schedule: Schedule,
    paths: Mapping[str, Path],
    dependence: Dependence,
    sizes: Mapping[str, int],
) -> bool:
    source, sink = paths[dependence.source], paths[dependence.sink]
    common = common_loops(source, sink)
    before = [k for k, _ in source] < [k for k, _ in sink]
    for loop in common:
        low = lag_in_loop(schedule.statements, dependence, loop).low
        if low is None or low < 0:
            return _exactly(schedule, dependence, common, before, sizes)
        if low > 0:
            return True
    return before or _exactly(schedule, dependence, common, before, sizes)


def lag_in_loop(
    graph: StatementGraph,
    dependence: Dependence,
    loop: Loop,
    sizes: Mapping[str, int] = NO_SIZES,
) -> Lag:
    """Steps of a loop between producer and consumer, for all values of bounds not in `sizes`."""
    source, sink = graph[dependence.source].domain, graph[dependence.sink].domain
    e = index_at(dependence.index[source.dims.index(loop.dim)], sizes)
    x = lag(loop.dim, e, at_sizes(sink, sizes), substitute(dependence.where, sizes))
    return (x if loop.step > 0 else -x) + (
        loop.shift[dependence.sink] - loop.shift[dependence.source]
    )


def _exactly(
    schedule: Schedule,
    dependence: Dependence,
    common: list[Loop],
    before: bool,
    sizes: Mapping[str, int],
) -> bool:
    """Tell whether no point is read at or before its computation, for these bounds."""
    domains = (schedule.statements[s].domain for s in (dependence.source, dependence.sink))
    source, sink = domains
    read = [f"{d}'" for d in source.dims]
    base = [f"{n} = {v}" for n, v in sizes.items()]
    base += isl.box_constraints(sink) + isl.box_constraints(source, "'")
    base += isl.index_constraints(dependence.index, read)
    if dependence.where != TRUE:
        base.append(isl.isl_text(dependence.where))
    late: list[str] = []  # consumer's time lexicographically below the producer's, or equal
    equal: list[str] = []
    for loop in common:
        d, sign = loop.dim, "" if loop.step > 0 else "-"
        ts = f"({sign}{d} + {loop.shift[dependence.sink]})"
        tp = f"({sign}{d}' + {loop.shift[dependence.source]})"
        late.append(" and ".join([*equal, f"{ts} < {tp}"]))
        equal.append(f"{ts} = {tp}")
    if not before:
        late.append(" and ".join(equal) if equal else "0 = 0")
    dims = [*sink.dims, *read]
    return all(isl.make_set(dims, [*base, x], tuple(sizes)).is_empty() for x in late)
