"""Drop a store whose points another store holds too.

    h[t<T] = merge(first, tanh[t], when=(t == 0, t >= 1))          h: t: T    tanh: t: T
    g[1<=t<T] = square(tanh[t])     →   g[1<=t<T] = square(h[t])   h: t: T

Values are assigned once, so where one array is a copy of another, either may be read (register
coalescing; Chaitin, 1982).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from recurra.ir.expr import Expr, all_of
from recurra.ir.graph import Node, Ref, Slice
from recurra.ir.types import Domain, is_shift
from recurra.ops.control import Merge
from recurra.polyhedral.dependence import holds_where_read
from recurra.schedule.dependences import shift_index
from recurra.schedule.legality import violations
from recurra.schedule.tree import Schedule
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.storage_plan import make_plan as make_plan
from recurra.transforms.rewriter.optimization_fuel import fuel


@dataclass(frozen=True)
class DuplicateStore:
    """A node that equals another, `original`, at the points where a condition holds."""

    original: str
    node: Node
    where: Expr
    shifts: tuple[int, ...]  # from the node's point to the original's, along each of their dims

    def read(self, ref: Ref) -> Ref:
        """A read of the original as a read of the copy."""
        index = (shift_index(e, -c) for e, c in zip(ref.index, self.shifts, strict=True))
        return Ref(self.node.name, tuple(index))

    def has(self, ref: Ref, reader: Domain, when: Expr, sizes: Mapping[str, int]) -> bool:
        """Tell whether there is a copy of every point that a read of the original wants."""
        domain = self.node.domain
        copied = all_of(self.where, *(e for r in domain for e in r.edges))
        return holds_where_read(copied, self.read(ref).index, domain, reader, when, sizes)


def without_duplicates(plan: StoragePlan) -> StoragePlan:
    """Return the plan without the stores whose points that are read are all in another store."""
    for name in plan.stores:
        for copy in _copies(plan, plan.graph[name]):
            plan = _without_original(plan, copy)
    return plan


def _copies(plan: StoragePlan, node: Node) -> Iterator[DuplicateStore]:
    """Yield the copies that a merge has of arrays with stores of their own."""
    for a, where in zip(node.args, node.op.when, strict=True) if isinstance(node.op, Merge) else ():
        store, domain = plan.stores.get(a.name), plan.graph[a.name].domain
        if store is None or store.output or store.given or domain.dims != node.domain.dims:
            continue
        shifts = [
            None if isinstance(e, Slice) else is_shift(e, d)
            for e, d in zip(a.index, domain.dims, strict=True)
        ]
        known = tuple(c for c in shifts if c is not None)
        if len(known) == len(shifts) and a.name != node.name:
            yield DuplicateStore(a.name, node, where, known)


def _without_original(plan: StoragePlan, copy: DuplicateStore) -> StoragePlan:
    """The plan whose readers read the copy, if that is legal and takes less memory."""
    readers = {
        plan.statements[s].equation
        for (s, k), access in plan.accesses.items()
        if access == "store" and plan.statements[s].args[k].name == copy.original
    }
    if copy.node.name in readers or not all(_may_read(plan, copy, r) for r in readers):
        return plan
    schedule = _redirect(plan.schedule, copy, readers)
    if violations(schedule, plan.sizes):
        return plan
    new = make_plan(schedule, plan.sizes)
    if _bytes(new) >= _bytes(plan) or not fuel().burn("two copies → one", copy.original):
        return plan
    return new


def _may_read(plan: StoragePlan, copy: DuplicateStore, reader: str) -> bool:
    """Tell whether every point of the original that an equation reads has a copy."""
    return all(
        copy.has(a, s.domain, s.condition(k), plan.sizes)
        for s in plan.statements.statements.values()
        if s.equation == reader
        for k, a in enumerate(s.args)
        if a.name == copy.original
    )


def _redirect(schedule: Schedule, copy: DuplicateStore, readers: set[str]) -> Schedule:
    """The schedule whose readers read the copy instead of the original."""

    def args(old: tuple[Ref, ...]) -> tuple[Ref, ...]:
        return tuple(copy.read(a) if a.name == copy.original else a for a in old)

    graph, lowered = schedule.graph, schedule.statements
    statements = {
        n: replace(s, args=args(s.args)) if s.equation in readers else s
        for n, s in lowered.statements.items()
    }
    return replace(
        schedule,
        graph=graph.update([replace(graph[n], args=args(graph[n].args)) for n in readers]),
        statements=replace(lowered, statements=statements),
    )


def _bytes(plan: StoragePlan) -> int:
    return sum(s.nbytes(plan.sizes) for s in plan.stores.values())
