"""Bounds at compile time: numbers, and those that the data set (rc.until)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from recurra.analysis.dynamic_bounds import NEVER, Until
from recurra.analysis.program_tracer import Tracer
from recurra.analysis.safety import check_safety
from recurra.compiler.index_checks import IndexCheck, with_index_checks
from recurra.config import environment
from recurra.errors import DomainError
from recurra.ir.dims import MAX_POINTS
from recurra.ir.expr import Sym, symbols
from recurra.ir.graph import Graph
from recurra.ir.order import components
from recurra.ir.types import Tuple
from recurra.storage.storage_plan import StoragePlan
from recurra.transforms.canonicalize.domains import known_branch
from recurra.transforms.early_exit.lower_until import Ending, end_rows
from recurra.transforms.rewriter.pattern_rewriter import apply

MAX_ELEMENTS = 2**60  # of an array: of 8 bytes each, their bytes have a number of 64 bits


@dataclass(frozen=True)
class Bounded:
    """The equations of a program, which are put out under which name, and its bounds."""

    graph: Graph
    logs: dict[str, str]
    sizes: dict[str, int]
    checks: dict[str, IndexCheck]  # by the outputs that tell what they find
    most: dict[str, int]  # every bound as a number


def bounded(tracer: Tracer, given: Mapping[str, Any], check_indices: bool = False) -> Bounded:
    """The program with numbers for its bounds.

    Those that the data set are numbers in the equations: their largest, past which nothing is read.
    Raises DomainError where a row that ends would be read past its end, or has no length to give.
    """
    data = {name: u for name, u in given.items() if isinstance(u, Until)}
    graph = tracer.graph([u.done.name for u in data.values()])
    checks = dict[str, IndexCheck]()
    if check_indices:
        graph, checks = with_index_checks(graph)
    sizes: dict[str, Any] = {n: u.most if isinstance(u, Until) else u for n, u in given.items()}
    if not data:
        return Bounded(graph, dict(tracer.logs), sizes, checks, sizes)
    if environment().check and any(u.most == NEVER for u in data.values()):
        raise DomainError(
            "RECURRA_CHECK=1 is for rows that have a limit",
            facts="it evaluates every point that there may be",
            hint="give a small one while you look: rc.until(.., max=9)",
        )
    for name, u in data.items():
        _expect(tracer, graph, name, u)
    written = graph.outputs
    ends = (u.done.name for u in data.values())  # asked for, too
    asked = replace(graph, outputs=tuple(dict.fromkeys([*written, *ends])))
    safe = check_safety(asked, sizes, {name: u.most for name, u in data.items()})
    known = apply(
        safe, (known_branch,), {}, share=False
    )  # y[T-1] as it is defined waits for no end
    graph = replace(known, outputs=written)
    for name in _innermost_first(graph, data):
        u = data[name]
        kept = [x.done.name for x in data.values()]
        ending = Ending(u.done.name, u.first, u.most, u.loc, u.every)
        graph = end_rows(graph, name, ending, kept)
    shown = dict(zip(written, graph.outputs, strict=True))
    left = {n: v for n, v in sizes.items() if n not in data}
    logs = {name: shown[x] for name, x in tracer.logs.items()}
    ends = {shown[x]: replace(c, last=shown[c.last]) for x, c in checks.items()}
    return Bounded(graph, logs, left, ends, sizes)


def expect_room(plan: StoragePlan, given: Mapping[str, Any]) -> None:
    """Raises DomainError where a tensor is kept at every point of rows that have no limit."""
    endless = [u for u in given.values() if isinstance(u, Until) and u.most == NEVER]
    if not endless:
        return
    for n in plan.graph.nodes.values():
        store = plan.stores.get(n.name)
        shape = [] if isinstance(n.type, Tuple) else [*n.type.sizes(plan.sizes)]
        slots = [] if store is None else [a.slots for a in store.kept]
        if max([*shape, *slots], default=0) < NEVER // 2:
            continue
        readers = [r.name for r, _ in plan.graph.readers[n.name]]
        why = (
            "it is put out"
            if n.name in plan.graph.outputs
            else f"it is read by {', '.join(dict.fromkeys(readers))}, when they have all been made"
        )
        raise DomainError(
            f"{n.name} is kept at every point of rows that have no limit",
            facts=f"{why}, and {endless[0]} says nothing of how many there may be",
            hint="give one, rc.until(.., max=500), or read less of the past",
            loc=n.loc or endless[0].loc,
        )


def expect_sizes(plan: StoragePlan) -> None:
    """Raises DomainError where an array has more elements than can be counted."""
    for n in plan.graph.nodes.values():
        types = n.type.items if isinstance(n.type, Tuple) else (n.type,)
        store = plan.stores.get(n.name)
        arrays = [t.sizes(plan.sizes) for t in types]
        arrays += [] if store is None else [store.shape(plan.sizes)]
        for shape in arrays:
            if max(shape, default=0) > MAX_POINTS or prod(shape) >= MAX_ELEMENTS:
                raise DomainError(
                    f"{n.name} would have {prod(shape)} elements",
                    facts=f"its sizes are {', '.join(map(str, shape))}; an axis has "
                    f"{MAX_POINTS} at most, and an array {MAX_ELEMENTS - 1}",
                    hint="make the sizes smaller",
                    loc=n.loc,
                )


def _expect(tracer: Tracer, graph: Graph, bound: str, until: Until) -> None:
    """The tensor that sets a bound varies with the dim that it bounds."""
    if until.program is not tracer or until.done.name not in graph.nodes:
        raise DomainError(
            f"the bound {bound} is set by {until.done.name}, of another program",
            facts=f"this one has the dims {', '.join(tracer.dim_names())}",
            hint="give a tensor of the program that is compiled",
            loc=until.loc,
        )
    mine = [d.range for d in tracer.dims if d.hi == Sym(bound)]
    if not mine:
        raise DomainError(
            f"the bound {bound} cannot be set by data",
            facts=f"it bounds no dim; the dims are {', '.join(str(d.range) for d in tracer.dims)}",
            hint=f"give it a number: {bound}: {100 if until.most == NEVER else until.most}",
            loc=until.loc,
        )
    domain = graph[until.done.name].domain
    if mine[0] not in domain.ranges:
        raise DomainError(
            f"the bound {bound} is set by {until.done.name}, "
            f"which does not vary with {mine[0].dim}",
            facts=f"it is defined over {domain or 'no dim'}, and ends {mine[0]}",
            hint=f"give a tensor with a value at every point of {mine[0].dim}",
            loc=until.loc,
        )
    if not isinstance(until.first, int) and bound in symbols(until.first):
        raise DomainError(
            f"rows that {bound} ends cannot run from {until.first}",
            facts=f"{bound} is only known when the row has ended",
            hint="from_ is a number, or made of the dims of the row",
            loc=until.loc,
        )


def _innermost_first(graph: Graph, data: Mapping[str, Until]) -> list[str]:
    """The bounds in an order in which rows come before what they are the points of.

    A row over (b, s), of which the data say where it ends, is a point of the row over b that ends
    s: how many points all of the rows have is a sum over those of the outer one. Raises DomainError
    if each of two bounds ends rows of the other.
    """
    over = {name: graph[u.done.name].domain for name, u in data.items()}

    def inside(name: str) -> list[str]:
        return [x for x in data if x != name and name in {str(r.hi) for r in over[x]}]

    parts = components(data, inside)
    for name, *others in parts:
        if others:
            raise DomainError(
                f"{name} ends rows that {others[0]} ends points of, and the other way round",
                facts=f"{data[name].done.name}, which sets {name}, is over "
                f"{over[name]}; {data[others[0]].done.name}, which sets {others[0]}, over "
                f"{over[others[0]]}",
                hint=f"give one of them a number: {name}: 10",
                loc=data[name].loc,
            )
    return [name for part in parts for name in part]
