"""Samplers: the calls that take rows of an offloaded store by number."""

from __future__ import annotations

from collections.abc import Iterable

from recurra.ir.graph import Node, Ref, Slice
from recurra.ir.types import Range
from recurra.ops.sampled_rows import Samples
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store


def samplers(plan: StoragePlan, store: Store) -> set[str]:
    """The calls that sample rows of a store, if each of its rows can be found by number."""
    found = {n.name for n, k in plan.graph.readers[store.name] if _samples(plan, store, n, k)}
    return found if all(a.kind in ("full", "per_point") for a in store.kept) else set()


def _samples(plan: StoragePlan, store: Store, node: Node, index: int) -> bool:
    whole = {r.dim for r in over(plan, node.args[index])}
    return (
        isinstance(node.op, Samples) and not index and whole.issuperset(a.dim for a in store.kept)
    )


def has_samples(plan: StoragePlan, names: Iterable[str]) -> bool:
    """Are samples among these variables?"""
    found = (plan.graph.nodes.get(name) for name in names)
    return any(n is not None and isinstance(n.op, Samples) for n in found)


def over(plan: StoragePlan, ref: Ref) -> list[Range]:
    """The dims along which a reference reads all points, the first outermost."""
    ranges = plan.graph[ref.name].domain
    return [r for r, e in zip(ranges, ref.index, strict=True) if isinstance(e, Slice)]
