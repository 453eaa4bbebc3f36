"""Values that a region only passes through are renamed by the host instead.

    step = step_call(..)                                step = step_call(..)
    a, token = region(seed, t, step, ..)        →       a = region(seed, t, step, ..)
                                                        token = step[7]

A value that enters a compiled function and leaves it unchanged costs some microseconds with every
launch, and a copy: of all weights, where an iteration begins with those of the one before. The host
gives the value another name instead, if nothing overwrites it: no region may take it, by either
name, to donate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from recurra.codegen.host_program import HostItem, HostLoop, Program, RegionLaunch, RenamedVariable
from recurra.codegen.region import Region, flow_of, variables_read
from recurra.ir.expr import TRUE, Expr, Sym, substitute
from recurra.ir.statement import Statement
from recurra.ir.types import Domain, Range
from recurra.ops.control import Item, Merge
from recurra.polyhedral import isl
from recurra.schedule.tree import Loop, members
from recurra.storage.storage_plan import StoragePlan

Spans = Mapping[int, tuple[int, int]]  # of the loops around: the times lo..hi-1


def rename_passthrough_values(program: Program) -> Program:
    """Rewrite a program so that its host renames what its regions would only pass through."""
    donated = frozenset(v for r in program.regions for v in r.carried)

    def within(items: tuple[HostItem, ...], spans: Spans) -> tuple[HostItem, ...]:
        return tuple(one(it, spans) for it in items)

    def one(it: HostItem, spans: Spans) -> HostItem:
        if isinstance(it, HostLoop):
            return replace(it, body=within(it.body, {**spans, it.loop.id: (it.lo, it.hi)}))
        if not isinstance(it, RegionLaunch) or it.region.chunk is not None or not spans:
            return it
        found = _handed_on(program.plan, it.region, spans, donated)
        return replace(it, region=_without(program.plan, it.region, found), after=found)

    return replace(program, items=within(program.items, {}))


def _handed_on(
    plan: StoragePlan, region: Region, spans: Spans, donated: Collection[str]
) -> tuple[RenamedVariable, ...]:
    """The variables of a region that are, after it, names for its arguments."""
    known: dict[str, RenamedVariable | None] = {}  # variables that it writes; None: computed
    for it in region.items:
        if isinstance(it, Loop):
            inside = [plan.statements[s].array for s in members(it.body)]
            known |= dict.fromkeys((*inside, *(x for x, _ in plan.initial_values.get(it.id, ()))))
        elif it.name in region.active:
            node = plan.statements[it.name]
            known[node.array] = _source(plan, node, region, spans, known)
    return tuple(
        x
        for v in region.gives
        if (x := known.get(v)) is not None and v not in donated and x.source not in donated
    )


def _without(plan: StoragePlan, region: Region, found: tuple[RenamedVariable, ...]) -> Region:
    """A region without the results that are handed on, and the statements only they need."""
    names, left = {x.variable for x in found}, region.active
    while True:
        inside = [plan.statements[s] for s in members(region.items) if s in left]
        unread = names - variables_read(plan, (s.name for s in inside)) - plan.stores.keys()
        gone = {s.name for s in inside if s.array in unread}
        if not gone:
            break
        left -= gone
    uses = flow_of(plan, region.items, left, None, region.around).uses
    held = tuple(v for v in region.held if v in uses)
    gives = tuple(v for v in region.gives if v not in names)
    return replace(region, active=left, held=held, gives=gives)


def _source(
    plan: StoragePlan,
    node: Statement,
    region: Region,
    spans: Spans,
    known: Mapping[str, RenamedVariable | None],
) -> RenamedVariable | None:
    """The argument that a statement's variable is a name for; None if it computes something."""
    if node.where != TRUE or node.accumulates:
        return None
    if isinstance(node.op, Item):
        name, index = node.args[0].name, node.op.k
        return RenamedVariable(node.array, name, index) if name in region.held else None
    name = _taken(plan, node, region, spans)
    if name is None or name not in known:
        return (
            RenamedVariable(node.array, name) if name is not None and name in region.held else None
        )
    origin = known[name]
    return None if origin is None else replace(origin, variable=node.array)


def _taken(plan: StoragePlan, node: Statement, region: Region, spans: Spans) -> str | None:
    """The variable of the branch that is taken at all times at which a region is launched."""
    if not isinstance(node.op, Merge):
        return None
    if (
        node.name in plan.initial_merges
    ):  # before the first step it has the value of the first branch
        return node.args[1].name
    for k, condition in enumerate(node.op.when):
        if _holds(plan, node, condition, region, spans):
            return node.args[k].name if plan.access(node.name, k) != "store" else None
    return None


def _holds(
    plan: StoragePlan, node: Statement, condition: Expr, region: Region, spans: Spans
) -> bool:
    """Does the condition of a branch hold at all times at which a region is launched?"""
    loops = {x.dim: x for x in region.around}
    at = {d: x.point(node.name, Sym(d)) for d, x in loops.items() if d in node.domain}
    ranges = (Range(d, spans[x.id][1], spans[x.id][0]) for d, x in loops.items())
    return isl.always(substitute(substitute(condition, plan.sizes), at), Domain(tuple(ranges)))
