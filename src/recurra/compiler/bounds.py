"""Bind the bounds of a program: numbers, and bounds that data set (rc.until)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from recurra.analysis.dynamic_bounds import NEVER, Until
from recurra.analysis.graph_builder import GraphBuilder
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

MAX_ELEMENTS = 2**60  # of an array: with 8 bytes each, their bytes fit a number of 64 bits


@dataclass(frozen=True)
class Bounded:
    """The equations of a program, the outputs that are logged under a name, and its bounds."""

    graph: Graph
    logs: dict[str, str]
    sizes: dict[str, int]
    checks: dict[str, IndexCheck]  # by the outputs with their results
    most: dict[str, int]  # every bound as a number


def bounded(
    builder: GraphBuilder, given: Mapping[str, Any], check_indices: bool = False
) -> Bounded:
    """Return the program with numbers for its bounds.

    Bounds that data set are their largest values, past which nothing is read. Raises DomainError if
    a row that ends would be read past its end, or has no length.
    """
    data = {name: u for name, u in given.items() if isinstance(u, Until)}
    graph = builder.graph([u.done.name for u in data.values()])
    checks = dict[str, IndexCheck]()
    if check_indices:
        graph, checks = with_index_checks(graph)
    sizes: dict[str, Any] = {n: u.most if isinstance(u, Until) else u for n, u in given.items()}
    if not data:
        return Bounded(graph, dict(builder.logs), sizes, checks, sizes)
    if environment().check and any(u.most == NEVER for u in data.values()):
        raise DomainError(
            "RECURRA_CHECK=1 is for rows that have a limit",
            facts="it evaluates every point that there may be",
            hint="give a small one while you look: rc.until(.., max=9)",
        )
    for name, u in data.items():
        _expect(builder, graph, name, u)
    written = graph.outputs
    kept = [u.done.name for u in data.values()]
    with_ends = replace(graph, outputs=tuple(dict.fromkeys([*written, *kept])))
    safe = check_safety(with_ends, sizes, {name: u.most for name, u in data.items()})
    known = apply(safe, (known_branch,), {}, share=False)  # so that y[T-1] waits for no row's end
    graph = replace(known, outputs=written)
    for name in _innermost_first(graph, data):
        u = data[name]
        ending = Ending(u.done.name, u.first, u.most, u.loc, u.every)
        graph = end_rows(graph, name, ending, kept)
    new_names = dict(zip(written, graph.outputs, strict=True))
    return Bounded(
        graph,
        logs={name: new_names[x] for name, x in builder.logs.items()},
        sizes={n: v for n, v in sizes.items() if n not in data},
        checks={new_names[x]: replace(c, last=new_names[c.last]) for x, c in checks.items()},
        most=sizes,
    )


def expect_room(plan: StoragePlan, given: Mapping[str, Any]) -> None:
    """Raise DomainError if a tensor is stored at every point of rows that have no limit."""
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
    """Raise DomainError if an array has more than MAX_ELEMENTS elements, or an axis MAX_POINTS."""
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


def _expect(builder: GraphBuilder, graph: Graph, bound: str, until: Until) -> None:
    """Raise DomainError unless the tensor that sets a bound varies with the dim that it bounds."""
    if until.program is not builder or until.done.name not in graph.nodes:
        raise DomainError(
            f"the bound {bound} is set by {until.done.name}, of another program",
            facts=f"this one has the dims {', '.join(builder.dim_names())}",
            hint="give a tensor of the program that is compiled",
            loc=until.loc,
        )
    bounded_dims = [d.range for d in builder.dims if d.hi == Sym(bound)]
    if not bounded_dims:
        raise DomainError(
            f"the bound {bound} cannot be set by data",
            facts=f"it bounds no dim; the dims are {', '.join(str(d.range) for d in builder.dims)}",
            hint=f"give it a number: {bound}: {100 if until.most == NEVER else until.most}",
            loc=until.loc,
        )
    domain = graph[until.done.name].domain
    own = bounded_dims[0]
    if own not in domain.ranges:
        raise DomainError(
            f"the bound {bound} is set by {until.done.name}, which does not vary with {own.dim}",
            facts=f"it is defined over {domain or 'no dim'}, and ends {own}",
            hint=f"give a tensor with a value at every point of {own.dim}",
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
    """Order bounds such that inner rows come before the rows whose points they are.

    A row over (b, s) that ends by data is a point of the row over b that ends s: the number of
    points of all rows is a sum over the points of the outer one. Raises DomainError for a cycle.
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
