"""Points that two stores would keep are kept by one of them.

    h[t<T] = merge(first, tanh[t], when=(t == 0, t >= 1))          h: t: T    tanh: t: T
    g[1<=t<T] = square(tanh[t])     →   g[1<=t<T] = square(h[t])   h: t: T

Values are assigned once, so where one array is a copy of another, either may be read (copy
coalescing; Chaitin, 1982, of registers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from recurra.ir.expr import Expr, both, lin
from recurra.ir.graph import Node, Ref, Slice
from recurra.ir.types import Domain, is_shift
from recurra.ops.control import Merge
from recurra.polyhedral.dependence import holds_where_read
from recurra.schedule.legality import violations
from recurra.schedule.tree import Schedule
from recurra.storage.storage_plan import StoragePlan, plan
from recurra.storage.store import Store
from recurra.transforms.rewriter.optimization_fuel import fuel


@dataclass(frozen=True)
class DuplicateStore:
    """A definition that, at its points where a condition holds, is what another is there."""

    original: str
    node: Node
    where: Expr
    shifts: tuple[int, ...]  # of the point that is copied, along each dim; both have the same dims

    def read(self, ref: Ref) -> Ref:
        """A read of the original as a read of the copy."""
        ends = zip(ref.index, self.shifts, strict=True)
        index = (
            replace(e, lo=lin([(e.lo, 1), (-c, 1)]), hi=lin([(e.hi, 1), (-c, 1)]))
            if isinstance(e, Slice)
            else lin([(e, 1), (-c, 1)])
            for e, c in ends
        )
        return Ref(self.node.name, tuple(index))

    def has(self, ref: Ref, reader: Domain, when: Expr, sizes: Mapping[str, int]) -> bool:
        """Is there a copy of every point that a read of the original asks for?"""
        domain = self.node.domain
        copied = both(self.where, *(e for r in domain for e in r.edges))
        return holds_where_read(copied, self.read(ref).index, domain, reader, when, sizes)


def without_duplicates(found: StoragePlan) -> StoragePlan:
    """The plan without the stores of which others have all points that are read."""
    for name in found.stores:
        node = found.graph[name]
        if isinstance(node.op, Merge):
            for copy in _copies(found, node):
                found = _smaller(found, copy)
    return found


def _copies(found: StoragePlan, node: Node) -> Iterator[DuplicateStore]:
    """Find what a definition by branches copies from arrays that have stores of their own."""
    assert isinstance(node.op, Merge)
    for a, where in zip(node.args, node.op.when, strict=True):
        store, domain = found.stores.get(a.name), found.graph[a.name].domain
        if store is None or not _may_go(store) or domain.dims != node.domain.dims:
            continue
        shifts = [
            None if isinstance(e, Slice) else is_shift(e, d)
            for e, d in zip(a.index, domain.dims, strict=True)
        ]
        known = tuple(c for c in shifts if c is not None)
        if len(known) == len(shifts) and a.name != node.name:
            yield DuplicateStore(a.name, node, where, known)


def _may_go(store: Store) -> bool:
    return not store.output and not store.given


def _smaller(found: StoragePlan, copy: DuplicateStore) -> StoragePlan:
    """The plan in which the copy is read for the original, if that is legal and takes less."""
    readers = {
        found.statements[s].equation
        for (s, k), access in found.accesses.items()
        if access.how == "store" and found.statements[s].args[k].name == copy.original
    }
    if copy.node.name in readers or not all(_may_read(found, copy, r) for r in readers):
        return found
    order = _reading(found.schedule, copy, readers)
    if violations(order, found.sizes):
        return found
    new = plan(order, found.sizes)
    if _bytes(new) >= _bytes(found) or not fuel().burn("two copies → one", copy.original):
        return found
    return new


def _may_read(found: StoragePlan, copy: DuplicateStore, reader: str) -> bool:
    """Does every read of the original, in an equation, ask for points of which there is a copy?"""
    return all(
        copy.has(a, s.domain, s.condition(k), found.sizes)
        for s in found.statements.statements.values()
        if s.equation == reader
        for k, a in enumerate(s.args)
        if a.name == copy.original
    )


def _reading(order: Schedule, copy: DuplicateStore, readers: set[str]) -> Schedule:
    """The schedule with some equations reading the copy for the original."""

    def args(old: tuple[Ref, ...]) -> tuple[Ref, ...]:
        return tuple(copy.read(a) if a.name == copy.original else a for a in old)

    nodes = {n: replace(x, args=args(x.args)) for n, x in order.graph.nodes.items() if n in readers}
    made = {
        n: replace(s, args=args(s.args)) if s.equation in readers else s
        for n, s in order.statements.statements.items()
    }
    return replace(
        order,
        graph=order.graph.update(nodes.values()),
        statements=replace(order.statements, statements=made),
    )


def _bytes(found: StoragePlan) -> int:
    return sum(s.nbytes(found.sizes) for s in found.stores.values())
