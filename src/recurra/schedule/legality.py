"""The legality of a schedule: every dependence has to go forward in time.

A second look, apart from how the schedule was found: producer and consumer are compared loop by
loop, by interval first and by isl, exactly, where intervals do not tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from recurra.ir.expr import TRUE, substitute
from recurra.ir.graph import index_at
from recurra.ir.statement import StatementGraph
from recurra.ir.types import Domain
from recurra.polyhedral import isl
from recurra.polyhedral.dependence_distance import Lag, lag
from recurra.polyhedral.extent import at_sizes
from recurra.schedule.dependences import Dependence, dependences
from recurra.schedule.tree import Loop, Schedule

NO_SIZES: Mapping[str, int] = MappingProxyType({})


def violations(schedule: Schedule, sizes: Mapping[str, int]) -> list[Dependence]:
    """The dependences that some point breaks; empty for a legal schedule."""
    paths = schedule.paths()
    return [r for r in dependences(schedule.statements) if not _forward(schedule, paths, r, sizes)]


def _forward(
    schedule: Schedule,
    paths: Mapping[str, tuple[tuple[int, Loop | None], ...]],
    dependence: Dependence,
    sizes: Mapping[str, int],
) -> bool:
    source, sink = paths[dependence.source], paths[dependence.sink]
    common: list[Loop] = []
    for (a, la), (b, lb) in zip(source, sink, strict=False):
        if a != b or la is None or lb is None:
            before = a < b
            break
        common.append(la)
    else:
        before = False
    for loop in common:
        low = waited(schedule.statements, dependence, loop).low
        if low is None or low < 0:
            return _exactly(schedule, dependence, common, before, sizes)
        if low > 0:
            return True
    return before or _exactly(schedule, dependence, common, before, sizes)


def waited(
    graph: StatementGraph,
    dependence: Dependence,
    loop: Loop,
    sizes: Mapping[str, int] = NO_SIZES,
) -> Lag:
    """Steps of a loop between producer and consumer, whatever bounds `sizes` leaves out."""
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
    """No pair of points has its consumer at or before its producer, for these bounds."""
    source, sink = (
        schedule.statements[dependence.source].domain,
        schedule.statements[dependence.sink].domain,
    )
    read = [f"{d}'" for d in source.dims]
    base = [f"{n} = {v}" for n, v in sizes.items()]
    base += (
        isl.box_constraints(sink) + _primed(source) + isl.index_constraints(dependence.index, read)
    )
    if dependence.where != TRUE:
        base.append(isl.text(dependence.where))
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


def _primed(domain: Domain) -> list[str]:
    return isl.box_constraints(domain, "'")
