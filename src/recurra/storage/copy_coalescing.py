"""Compute values that are only copied into a store in that store.

    k_of[t<256] = copy(pick(k_head[t//32], t%32))      k_head[z] is kept in k, at 32z : 32z+32
    k[t<T] = merge(k_of, k_rest, when=(t < 256, ..))   →   k[256<=t<T] = merge(k_rest)

This is register coalescing (Chaitin, 1982): the two never hold different values of one point. So
a prompt's points are in memory once, and no loop moves them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from recurra.ir.expr import TRUE, Sym, all_of, div, evaluate, mod, substitute, symbols
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.types import Domain, Range, Tuple
from recurra.ops.control import Call, Merge
from recurra.ops.elementwise import Copy
from recurra.ops.indexing import Pick
from recurra.polyhedral import isl
from recurra.polyhedral.extent import varies
from recurra.schedule.lower_values import lower_values
from recurra.schedule.tree import Exec, Item
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Home
from recurra.transforms.rewriter.optimization_fuel import fuel


@dataclass(frozen=True)
class Coalesced:
    """`name` is stored in `home`; the equations `copies`, which copied it, are deleted."""

    name: str
    home: Home
    cut: int  # the first point that is not copied
    copies: tuple[str, ...]


def coalesced(plan: StoragePlan) -> StoragePlan:
    """Return the plan without the copies whose source can be computed in place."""
    if any(len(writers) > 1 for writers in plan.statements.writers.values()):
        return plan  # statements are lowered anew, one per node: other splits would be lost
    for name in plan.graph.nodes:
        n = plan.graph.nodes.get(name)
        found = None if n is None else _find_home(plan, n)
        if n and found and fuel().burn("a copy → made in its place", found.name):
            plan = _coalesce(plan, n, found)
    return plan


def _find_home(plan: StoragePlan, node: Node) -> Coalesced | None:
    """Find the source of a merge's first points, if the store of the merge can hold it."""
    split = _first_points(plan, node)
    if split is None:
        return None
    dim, cut = split
    chain = _copies(plan, node.args[0].name)
    if chain is None:
        return None
    *_, pick = chain
    op, (ref,) = plan.graph[pick].op, plan.graph[pick].args
    assert isinstance(op, Pick)
    home = _home(node, dim, plan.graph[ref.name], ref, op)
    if home is None or not _fits(plan, home, cut, plan.graph[ref.name]):
        return None
    if not _read_before(plan, node, dim, cut, ref.name, pick):
        return None
    return Coalesced(ref.name, home, cut, tuple(chain))


def _first_points(plan: StoragePlan, node: Node) -> tuple[str, int] | None:
    """(dim, cut) of a merge of two branches, if the first is taken exactly at points < cut."""
    store = plan.stores.get(node.name)
    if not isinstance(node.op, Merge) or len(node.args) != 2 or node.name in plan.initial_merges:
        return None
    free = symbols(node.op.when[0]) - plan.sizes.keys()
    if store is None or store.output or len(free) != 1:
        return None
    (dim,) = free
    if dim not in node.domain or varies(r := node.domain[dim], plan.sizes):
        return None
    copied = plan.graph[node.args[0].name].domain
    if evaluate(r.lo, plan.sizes) or dim not in copied or varies(copied[dim], plan.sizes):
        return None
    cut, end = (evaluate(x.hi, plan.sizes) for x in (copied[dim], r))
    first, second = (substitute(c, plan.sizes) for c in node.op.when)
    early, late = Domain((Range(dim, cut),)), Domain((Range(dim, end, cut),))
    return (dim, cut) if isl.always(first, early) and isl.always(second, late) else None


def _copies(plan: StoragePlan, name: str) -> list[str] | None:
    """The chain of copies from `name` to a pick, each read only by the one before."""
    chain: list[str] = []
    while True:
        n = plan.graph[name]
        if len(plan.graph.readers[name]) != 1 or name in plan.graph.outputs:
            return None
        chain.append(name)
        if isinstance(n.op, Pick):
            return chain
        if not isinstance(n.op, Copy) or not plan.graph.is_identity(n.args[0]):
            return None
        name = n.args[0].name


def _home(node: Node, dim: str, source: Node, ref: Ref, op: Pick) -> Home | None:
    """The place in the store of `node` to which the points of `source` are copied."""
    if isinstance(source.type, Tuple) or isinstance(node.type, Tuple) or ref.slices:
        return None
    if source.type.dtype != node.type.dtype or not source.op.pure:
        return None
    size, along, t = source.type.shape[op.axis], None, Sym(dim)
    mine = tuple(s for k, s in enumerate(source.type.shape) if k != op.axis)
    if not isinstance(size, int) or mine != node.type.shape:
        return None
    others = [d for d in node.domain.dims if d != dim]
    for e, r in zip(ref.index, source.domain, strict=True):
        if e == Sym(r.dim) and r.dim in others and node.domain[r.dim] == r:
            others.remove(r.dim)
        elif along is None and e == div(t, size) and not r.mentions() and r.lo == 0:
            along = r.dim
        else:
            return None
    if others or op.at_ != (t if along is None else mod(t, size)):
        return None
    return Home(node.name, dim, along, size, op.axis)


def _fits(plan: StoragePlan, home: Home, cut: int, source: Node) -> bool:
    """Tell whether the store has every point of the source, each contiguous."""
    axes = plan.stores[home.store].axes
    axis = next((a for a in axes if a.dim == home.dim), None)
    if axis is None or axis.lo or axis.kind not in ("full", "tiled"):
        return False
    if any(a.kind == "strided" for a in axes):
        return False
    points = 1 if home.along is None else source.domain[home.along].size(plan.sizes)
    if not cut <= points * home.size <= axis.slots:
        return False
    return axis.kind == "full" or axis.tile % home.size == 0 or axis.tile == axis.slots


def _read_before(plan: StoragePlan, node: Node, dim: str, cut: int, name: str, pick: str) -> bool:
    """Tell whether all readers of the source, except the copy, run before the merge.

    They must read whole points; readers of the merge must read its store, or only later points.
    """
    graph, paths = plan.graph, plan.schedule.paths()
    if name in graph.outputs or name in plan.homes or name in plan.initial_merges:
        return False
    others = [(r, k) for r, k in graph.readers[name] if r.name != pick]
    early = [paths[x][0][0] for x in (name, *(r.name for r, _ in others)) if x in paths]
    if max(early, default=0) >= paths[node.name][0][0] or len(early) != len(others) + 1:
        return False
    if any(r.args[k].slices or isinstance(r.op, Call) for r, k in others):
        return False

    def later(domain: Domain) -> bool:
        fixed = dim in domain and not varies(domain[dim], plan.sizes)
        return fixed and evaluate(domain[dim].lo, plan.sizes) >= cut

    accesses = ((r, plan.accesses[r.name, k]) for r, k in graph.readers[node.name])
    return all(a == "store" or (a == "now" and later(r.domain)) for r, a in accesses)


def _coalesce(plan: StoragePlan, node: Node, found: Coalesced) -> StoragePlan:
    """The plan with `found` in its home, and a merge of only the remaining points."""
    r = node.domain[found.home.dim]
    ranges = (replace(x, lo=found.cut) if x == r else x for x in node.domain)
    rest = replace(
        node, op=Merge(when=(all_of(),)), args=(node.args[1],), domain=Domain(tuple(ranges))
    )
    nodes = {k: x for k, x in plan.graph.nodes.items() if k not in found.copies}
    graph = Graph({**nodes, node.name: rest}, plan.graph.outputs, plan.graph.dims)
    items = _without_statements(plan.schedule.items, found.copies)
    accesses = {k: a for k, a in plan.accesses.items() if k[0] not in found.copies}
    accesses[node.name, 0] = accesses.pop((node.name, 1))
    carried = {k: v.difference(found.copies) for k, v in plan.carried.items()}
    where = {s.equation: s.where for s in plan.statements.statements.values() if s.where != TRUE}
    return replace(
        plan,
        schedule=replace(
            plan.schedule,
            graph=graph,
            statements=lower_values(graph, plan.sizes, cuts={}, guards=where),
            items=items,
        ),
        accesses=accesses,
        stores={k: s for k, s in plan.stores.items() if k not in (found.name, *found.copies)},
        carried={k: v for k, v in carried.items() if v},
        homes={**plan.homes, found.name: found.home},
    )


def _without_statements(items: tuple[Item, ...], deleted: Collection[str]) -> tuple[Item, ...]:
    out: list[Item] = []
    for it in items:
        if isinstance(it, Exec):
            out += [] if it.name in deleted else [it]
            continue
        body = _without_statements(it.body, deleted)
        shifts = tuple(p for p in it.shifts if p[0] not in deleted)
        if body:
            out.append(replace(it, shifts=shifts, body=body))
    return tuple(out)
