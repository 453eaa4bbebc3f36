"""Statements of a loop's body that run at some of its steps only, put together.

for i:  s  e  f  y      e, f: at i % 50 == 0      →      s   [i % 50 == 0: e f]   y
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from recurra.codegen.loop_segments import members
from recurra.ir.expr import TRUE, Expr, Logic, Sym, both, substitute, symbols
from recurra.ir.statement import StatementGraph
from recurra.ir.types import Tuple
from recurra.schedule.tree import Item, Loop
from recurra.storage.storage_plan import StoragePlan

Guard = frozenset[Expr]  # conditions on times of loops; all of them hold
NONE: Guard = frozenset()


@dataclass(frozen=True)
class Guarded:
    """Items that run `when` all of these conditions hold.

    `gives`: the variables that others read of them, or later steps. `stores`: what they write.
    """

    when: Guard
    items: tuple[Item, ...]
    gives: tuple[str, ...]
    stores: tuple[str, ...]

    @property
    def condition(self) -> Expr:
        return both(*sorted(self.when, key=str))


def guarded(
    plan: StoragePlan,
    items: Sequence[Item],
    active: frozenset[str],
    around: Sequence[Loop],
    held: Guard = NONE,
) -> list[Guarded]:
    """Items in order; neighbors that run under the same conditions, `held` aside, are one."""
    pairs = [(guard_of(plan, it, active, around) - held, it) for it in items if _runs(it, active)]
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
    """The condition under which anything of some items runs, of the times of the loops around."""
    found = [guard_of(plan, it, active, around) for it in items if _runs(it, active)]
    return both(*sorted(frozenset.intersection(*found), key=str)) if found else TRUE


def guard_of(plan: StoragePlan, it: Item, active: frozenset[str], around: Sequence[Loop]) -> Guard:
    """The conditions that all that runs of an item have in common."""
    mine = [_guard(plan.statements, s, around) for s in members((it,)) if s in active]
    return frozenset.intersection(*mine) if mine else NONE


def _guard(graph: StatementGraph, statement: str, around: Sequence[Loop]) -> Guard:
    """The conditions of a statement that are known in the body of these loops, of their times."""
    s, times = graph[statement], {x.dim: x for x in around}
    if s.where == TRUE:
        return NONE
    parts = s.where.args if isinstance(s.where, Logic) and s.where.op == "&" else (s.where,)
    open_ = set(s.domain.dims) - times.keys()
    at = {d: x.point(statement, Sym(d)) for d, x in times.items() if d in s.domain}
    return frozenset(substitute(c, at) for c in parts if not symbols(c) & open_)


def _runs(it: Item, active: frozenset[str]) -> bool:
    return any(s in active for s in members((it,)))


def _outward(plan: StoragePlan, mine: Sequence[str], around: Sequence[Loop]) -> Iterable[str]:
    """The variables of some statements that others read, or later steps of the loops around."""
    inside, graph = set(mine), plan.statements
    made = {graph[s].array for s in mine if not isinstance(graph[s].type, Tuple)}
    kept = {n for x in around for n in plan.carried.get(x.id, ())}
    kept |= {init for pairs in plan.seeds.values() for _, init in pairs}
    for s in graph.statements.values():
        if s.name not in inside:
            kept |= {a.name for k, a in enumerate(s.args) if plan.access(s.name, k) != "store"}
    return [n for n in graph.arrays if n in made & kept]
