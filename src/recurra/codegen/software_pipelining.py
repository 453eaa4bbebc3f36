"""A step of a host loop begins with its host call, so that it takes one launch, not two.

    for t:  act  env.step  learn        →        for t:  env.step@-1  learn@-1  act

The work after the call of one step and before the call of the next is one region, or two: work that
the next call waits for goes first, see host_calls_first.py. With groups of rows that take turns,
the loop over groups is rotated:

    for t:  for g:  act  env.step      →        for t:  for g:  env.step@-1  act

While the environment of one group is stepped, the others act. Work without host calls is done for
one group after the other, each in one launch:

    for t backwards:  for g:  learn    →        for g:  for t backwards:  learn
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from recurra.codegen.early_exit import early_exits
from recurra.codegen.host_calls_first import calls_first
from recurra.codegen.loop_segments import calls_host
from recurra.ir.statement import StatementGraph
from recurra.polyhedral.extent import varies
from recurra.schedule.dependences import dependences
from recurra.schedule.legality import lag_in_loop
from recurra.schedule.tree import Exec, Item, Loop, Schedule, members


def rotated(schedule: Schedule, sizes: Mapping[str, int], groups: Collection[str] = ()) -> Schedule:
    """Rotate every inner loop that has work both before and after a host call.

    The outermost loop is left as it is: a run is saved between its steps. So are loops that the
    data end, whose next step may not exist. Loops over `groups` are rotated within the loop around
    them, or interchanged with it.
    """
    ended = early_exits(schedule, sizes)

    def inside(it: Item, depth: int) -> Item:
        if isinstance(it, Exec):
            return it
        inner = of_groups(schedule.statements, it, groups)
        if inner is not None and not calls_host(schedule.statements, it):
            within = inside(replace(it, body=inner.body), depth + 1)
            return replace(inner, body=(within,))
        ends = depth == 0 or any(e.sets(it) or e.ends(it) for e in ended)
        open_ = any(varies(schedule.statements[m].domain[it.dim], sizes) for m in members(it.body))
        if inner is not None and not ends and not open_:
            body, late = from_call(schedule.statements, inner.body)
            inner = calls_first(schedule.statements, replace(inner, body=body))
            return replace(it, body=(inner,), shifts=later(it, late))
        loop = replace(it, body=tuple(inside(x, depth + 1) for x in it.body))
        if ends or open_:
            return loop
        return calls_first(
            schedule.statements, loop if loop.dim in groups else turned(schedule.statements, loop)
        )

    return replace(schedule, items=tuple(inside(it, 0) for it in schedule.items))


def turned(graph: StatementGraph, loop: Loop) -> Loop:
    """Rotate a loop to begin with its first host call; one without calls is left as it is."""
    body, late = from_call(graph, loop.body)
    return replace(loop, body=body, shifts=later(loop, late))


def of_groups(graph: StatementGraph, loop: Loop, groups: Collection[str]) -> Loop | None:
    """The loop over groups that is all of a loop's body, if no group reads another; else None."""
    if len(loop.body) != 1 or not isinstance(inner := loop.body[0], Loop):
        return None
    if inner.dim not in groups:
        return None
    mine = set(members(inner.body))
    inside = (r for r in dependences(graph) if r.sink in mine and r.source in mine)
    return inner if all(lag_in_loop(graph, r, inner).exact == 0 for r in inside) else None


def from_call(
    graph: StatementGraph, body: tuple[Item, ...]
) -> tuple[tuple[Item, ...], frozenset[str]]:
    """Move the first host call of a body to the front; also return the statements one step late.

    The end of a sum that loops before the call compute stays behind them: it restarts each step.
    """
    host = [k for k, it in enumerate(body) if calls_host(graph, it)]
    if not host or host[0] == 0 or host[-1] == len(body) - 1:
        return body, frozenset()
    lead, rest = body[: host[0]], body[host[0] :]
    sums = {graph.running(s) for s in members(rest)} & set(members(lead))
    ends = tuple(it for it in rest if isinstance(it, Exec) and graph.running(it.name) in sums)
    if len(ends) < len(sums):
        return body, frozenset()
    rest = tuple(it for it in rest if it not in ends)
    return (*rest, *lead, *ends), frozenset(members(rest))


def later(loop: Loop, late: Collection[str]) -> tuple[tuple[str, int], ...]:
    """The shifts of a loop in which `late` statements run one more step late."""
    return tuple((s, k + (s in late)) for s, k in loop.shifts)
