"""rotate: a step of a host loop begins with its host call, so that it takes one launch, not two.

    for t:  act  env.step  learn        →        for t:  env.step@-1  learn@-1  act

What follows the call of one step and what leads to the call of the next are one region, or two:
what leads to the next call goes first, see ahead.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recurra.ir.graph import Graph
from recurra.program.ahead import ahead
from recurra.program.ended import endings
from recurra.program.steps import calls_host, members
from recurra.schedule.tree import Exec, Item, Loop, Schedule, domain_of
from recurra.sets.extent import varies


def rotated(s: Schedule, sizes: Mapping[str, int]) -> Schedule:
    """The schedule with every inner loop rotated that has a host call between two stretches.

    The outermost loop is left as it is: a run is saved between its steps. So are loops that the
    data end, whose next step is not known to be one.
    """

    ended = endings(s.graph, sizes)

    def inside(it: Item, depth: int) -> Item:
        if isinstance(it, Exec):
            return it
        loop = replace(it, body=tuple(inside(x, depth + 1) for x in it.body))
        ends = depth == 0 or any(e.sets(loop) for e in ended)
        open_ = any(varies(domain_of(s.graph, m)[loop.dim], sizes) for m in members(loop.body))
        return loop if ends or open_ else ahead(s.graph, turned(s.graph, loop))

    return replace(s, items=tuple(inside(it, 0) for it in s.items))


def turned(graph: Graph, loop: Loop) -> Loop:
    """A loop that begins with its first host call; one without is left as it is."""
    host = [k for k, it in enumerate(loop.body) if calls_host(graph, it)]
    if not host or host[0] == 0 or host[-1] == len(loop.body) - 1:
        return loop
    lead, rest = loop.body[: host[0]], loop.body[host[0] :]
    late = set(members(rest))
    shifts = tuple((s, k + (s in late)) for s, k in loop.shifts)
    return replace(loop, body=(*rest, *lead), shifts=shifts)
