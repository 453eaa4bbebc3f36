"""Predication: loops whose steps are nearly alike have one body, with conditions on parts of it.

for i in 0..0:    a b c                 for i in 0..I-1:    a  [i >= 1: d]  b c
for i in 1..I-1:  a d b c          →

A body is compiled once for every segment of its loop, so a few statements that begin a step later
than all others double it. The condition costs time at every step; where a step takes long, that is
little, and half of the compilation is saved.
"""

from __future__ import annotations

from dataclasses import replace

from recurra.codegen.launch_size import items_ns
from recurra.codegen.loop_segments import spans_of
from recurra.cost.prices import Prices
from recurra.cost.thresholds import GUARD_NS, MAX_PREDICATE_SHARE
from recurra.ir.types import Tuple
from recurra.ops.elementwise import Going
from recurra.ops.source import Input
from recurra.polyhedral.extent import varies
from recurra.schedule.tree import Item, Loop, members
from recurra.storage.storage_plan import StoragePlan


def predicated_loops(plan: StoragePlan, prices: Prices) -> StoragePlan:
    """Mark the statements of each loop of a plan that are predicated."""

    def marked(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(mark(it) if isinstance(it, Loop) else it for it in items)

    def mark(loop: Loop) -> Loop:
        predicated = worth_predicating(plan, loop, prices)
        return replace(loop, body=marked(loop.body), predicated=predicated)

    return replace(plan, schedule=replace(plan.schedule, items=marked(plan.schedule.items)))


def worth_predicating(plan: StoragePlan, loop: Loop, prices: Prices) -> frozenset[str]:
    """The statements that begin or end inside a loop, while conditions cost little of a step."""
    graph, mine = plan.statements, members(loop.body)
    if any(varies(graph[s].domain[loop.dim], plan.sizes) for s in mine):
        return frozenset()
    spans = spans_of(graph, loop, mine, plan.sizes)
    if not spans:
        return frozenset()
    first, *inner, last = sorted({x for span in spans.values() for x in span})
    budget = MAX_PREDICATE_SHARE * items_ns(plan, loop.body, prices) if inner else 0.0
    out: set[str] = set()
    for cut in inner:
        here = {s for s, span in spans.items() if cut in span} - out
        if not all(can_be_predicated(plan, s) for s in here):
            continue
        cost = sum(predicate_ns(plan, s, loop, prices) for s in here)
        if cost <= budget:
            budget -= cost
            out |= here
    firm = [span for s, span in spans.items() if s not in out]
    whole = firm and (min(firm)[0], max(hi for _, hi in firm)) == (first, last)
    return frozenset(out) if whole else frozenset()


def predicate_ns(plan: StoragePlan, statement: str, loop: Loop, prices: Prices) -> float:
    """Nanoseconds of a statement's condition in a step of a loop: it makes the result carried."""
    s = plan.statements[statement]
    assert not isinstance(s.type, Tuple)
    runs = s.domain.points(plan.sizes) / s.domain[loop.dim].size(plan.sizes)
    return runs * (GUARD_NS + prices.traffic * s.type.nbytes(plan.sizes))


def can_be_predicated(plan: StoragePlan, statement: str) -> bool:
    """May a step skip the statement? Not if it accumulates, is an input, ends loops or calls."""
    s = plan.statements[statement]
    odd = s.accumulates or isinstance(s.op, Input | Going) or not s.op.pure
    return not odd and statement not in plan.initial_merges and not isinstance(s.type, Tuple)
