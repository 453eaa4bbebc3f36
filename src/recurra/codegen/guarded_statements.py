"""Statements of a loop's body that run at some of its steps only, grouped by condition.

for i:  s  e  f  y      e, f: at i % 50 == 0      →      s   [i % 50 == 0: e f]   y
for i:  p  e  f  y      e, f: decided by p[i]     →      p   [p[i]: e f]   y
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from recurra.codegen.region import variables_read
from recurra.ir.expr import TRUE, Expr, Logic, Sym, all_of, substitute, symbols
from recurra.ir.statement import DataCondition, StatementGraph
from recurra.ir.types import Tuple
from recurra.schedule.tree import Item, Loop, members
from recurra.storage.storage_plan import StoragePlan

Guard = frozenset[Expr | DataCondition]  # a conjunction of conditions on loop times or on data
NONE: Guard = frozenset()


@dataclass(frozen=True)
class Guarded:
    """Items that run when all conditions of `when` hold.

    `gives`: their variables that others read, or later steps. `stores`: those that they write.
    """

    when: Guard
    items: tuple[Item, ...]
    gives: tuple[str, ...]
    stores: tuple[str, ...]

    @property
    def condition(self) -> Expr:
        """The condition on the times of loops."""
        return time_condition(self.when)

    @property
    def on_data(self) -> list[DataCondition]:
        """The conditions on data."""
        return sorted((c for c in self.when if isinstance(c, DataCondition)), key=str)


def time_condition(guard: Guard) -> Expr:
    """The conjunction of a guard's conditions on times."""
    return all_of(*sorted((c for c in guard if isinstance(c, Expr)), key=str))


def guarded(
    plan: StoragePlan,
    items: Sequence[Item],
    active: frozenset[str],
    around: Sequence[Loop],
    assumed: Guard = NONE,
) -> list[Guarded]:
    """Group neighboring items that run under the same conditions, given that `assumed` hold."""
    pairs = [
        (guard_of(plan, it, active, around) - assumed, it) for it in items if _runs(it, active)
    ]
    out: list[Guarded] = []
    for when, group in groupby(pairs, key=lambda p: p[0]):
        inside = tuple(it for _, it in group)
        mine = [s for s in members(inside) if s in active]
        stores = dict.fromkeys(map(plan.written, mine))
        gives = _outward(plan, mine, around) if when else ()
        out.append(Guarded(when, inside, tuple(gives), tuple(stores)))
    return out


def condition_of(
    plan: StoragePlan, items: Sequence[Item], active: frozenset[str], around: Sequence[Loop]
) -> Expr:
    """The condition on the times of the loops around under which any of some items runs."""
    found = [guard_of(plan, it, active, around) for it in items if _runs(it, active)]
    return time_condition(frozenset.intersection(*found)) if found else TRUE


def guard_of(plan: StoragePlan, it: Item, active: frozenset[str], around: Sequence[Loop]) -> Guard:
    """The conditions that all active statements of an item have in common.

    A condition on data is known if one of the statements reads it.
    """
    graph = plan.statements
    mine = [s for s in members((it,)) if s in active]
    common = [_guard(graph, s, around) | _decided(graph, s, around) for s in mine]
    known = [_decided(graph, s, around) for s in mine if graph[s].polls]
    guard = frozenset.intersection(*common) if mine else NONE
    return frozenset(c for c in guard if isinstance(c, Expr) or any(c in x for x in known))


def condition_reader(
    plan: StoragePlan, condition: DataCondition, items: tuple[Item, ...], around: Sequence[Loop]
) -> tuple[str, int]:
    """A statement of some items that reads a condition, and the index of that operand."""
    for s in (plan.statements[s] for s in members(items)):
        for k, c in enumerate(s.decided_by if s.polls else ()):
            if _at(plan.statements, c, s.name, around) == condition:
                return s.name, len(s.operands) + k
    raise AssertionError(f"no statement asks {condition}")


def _guard(graph: StatementGraph, statement: str, around: Sequence[Loop]) -> Guard:
    """The conditions on times of a statement that are known in the body of these loops."""
    s = graph[statement]
    ranges = (s.domain[x.dim] for x in around if statement in x.predicated)
    where = all_of(s.where, *(c for r in ranges for c in r.edges))
    if where == TRUE:
        return NONE
    parts = where.args if isinstance(where, Logic) and where.op == "&" else (where,)
    open_, at = set(s.domain.dims) - {x.dim for x in around}, _times(graph, statement, around)
    return frozenset(substitute(c, at) for c in parts if not symbols(c) & open_)


def _decided(graph: StatementGraph, statement: str, around: Sequence[Loop]) -> Guard:
    """The conditions on data of a statement that are known in the body of these loops."""
    found = (_at(graph, c, statement, around) for c in graph[statement].decided_by)
    return frozenset(c for c in found if c is not None)


def _at(
    graph: StatementGraph, condition: DataCondition, statement: str, around: Sequence[Loop]
) -> DataCondition | None:
    """A condition at the times of these loops; None if it depends on others."""
    if condition.dims & (set(graph[statement].domain.dims) - {x.dim for x in around}):
        return None
    return replace(condition, ref=condition.ref.at(_times(graph, statement, around)))


def _times(graph: StatementGraph, statement: str, around: Sequence[Loop]) -> dict[str, Expr | int]:
    """The point of a statement along each of these loops, as a function of their times."""
    s = graph[statement]
    return {x.dim: x.point(statement, Sym(x.dim)) for x in around if x.dim in s.domain}


def _runs(it: Item, active: frozenset[str]) -> bool:
    return any(s in active for s in members((it,)))


def _outward(plan: StoragePlan, statements: Sequence[str], around: Sequence[Loop]) -> Iterable[str]:
    """The variables of some statements that others read, or later steps of the loops around."""
    inside, graph = set(statements), plan.statements
    written = {graph[s].array for s in statements if not isinstance(graph[s].type, Tuple)}
    kept = {n for x in around for n in plan.carried.get(x.id, ())}
    kept |= variables_read(plan, (s for s in graph.statements if s not in inside))
    return [n for n in graph.arrays if n in written & kept]
