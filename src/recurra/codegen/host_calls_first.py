"""Work that the next host call waits for goes before work that it does not wait for.

    for t:  env.step@-1  learn@-1  act        →        for t:  env.step@-1  act │ learn@-1

In a launch of its own, after the bar, the last work runs while the host is in its call.
"""

from __future__ import annotations

from dataclasses import replace

from recurra.codegen.loop_segments import calls_host
from recurra.ir.statement import StatementGraph
from recurra.schedule.dependences import dependences
from recurra.schedule.tree import Exec, Item, Loop, members


def calls_first(graph: StatementGraph, loop: Loop) -> Loop:
    """Move items that no call waits for to the end of a loop that begins with its calls."""
    first = [k for k, it in enumerate(loop.body) if calls_host(graph, it)]
    if first != list(range(len(first))):
        return loop
    calls, rest = loop.body[: len(first)], loop.body[len(first) :]
    deferred = unawaited_items(graph, loop.body)
    waited = tuple(it for it in rest if it not in deferred)
    return replace(loop, body=(*calls, *waited, *deferred)) if waited else loop


def unawaited_items(graph: StatementGraph, items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The items after the host calls among `items` that no such call waits for, in any step.

    There are none if nothing is called, or if a call is inside of a loop.
    """
    calls = [k for k, it in enumerate(items) if calls_host(graph, it)]
    if not calls or not all(isinstance(items[k], Exec) for k in calls):
        return ()
    rest = items[calls[-1] + 1 :]
    place = {s: k for k, it in enumerate(items) for s in members((it,))}
    sources: dict[str, list[str]] = {s: [] for s in place}
    for read in dependences(graph):  # values of other loops are computed before the first step
        if read.sink in place and read.source in place:
            sources[read.sink].append(read.source)
    todo, waited = calls, set(calls)
    while todo:
        found = {place[x] for s in members((items[todo.pop()],)) for x in sources[s]}
        todo += sorted(found - waited)
        waited |= found
    return tuple(it for it in rest if place[members((it,))[0]] not in waited)
