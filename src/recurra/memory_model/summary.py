"""Summarize a program's memory before it runs: tensors at the peak, reasons, and ways to save."""

from __future__ import annotations

from recurra.memory_model.arena import NAME
from recurra.memory_model.budget import BudgetChoice
from recurra.memory_model.peak import KINDS, Held, Peak
from recurra.ops.control import Call, Item
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store

SHOWN = 12


def choices(plan: StoragePlan, held: Held) -> tuple[BudgetChoice, ...]:
    """The choices for a tensor, each with the most bytes that it would save at the peak.

    They are neither priced nor proved legal: a store needs at least one step at a time, a temporary
    in two tiles is half as large, and results of host calls are not computed twice.
    """
    keep = BudgetChoice(held.name, "keep", 0)
    if held.kind == "temporary":
        return (keep, BudgetChoice(held.name, "tile", held.nbytes // 2, why="in two tiles"))
    store = plan.stores.get(held.name)
    if held.kind != "store" or store is None or not _steps(store):
        return (keep,)
    saved = held.nbytes - held.nbytes // _steps(store)
    moved = tuple(
        BudgetChoice(held.name, how, saved, why="all but a step") for how in ("host", "disk")
    )
    if isinstance(plan.graph[held.name].op, (Call, Item)):
        return (keep, *moved)
    return (keep, BudgetChoice(held.name, "recompute", saved, why="all but a step"), *moved)


def _steps(store: Store) -> int:
    """The slots of the longest axis of a store; 0 if it keeps one point."""
    return max((a.slots for a in store.kept if a.slots > 1), default=0)


def rows(plan: StoragePlan, peak: Peak) -> list[dict[str, object]]:
    """A row for each of the largest tensors at the peak."""
    return [row(plan, h) for h in peak.held[:SHOWN]]


def row(plan: StoragePlan, held: Held) -> dict[str, object]:
    store = plan.stores.get(held.name)
    by_saving: dict[int, list[str]] = {}
    for c in choices(plan, held):
        by_saving.setdefault(c.saves, []).append(c.how)
    saves = "; ".join(f"{', '.join(how)} {n:,}" for n, how in by_saving.items() if n)
    return {
        "tensor": held.name,
        "kind": KINDS[held.kind],
        "kept": store.layout if store and held.kind != "temporary" else "",
        "bytes": held.nbytes,
        "for any bounds": str(held.amount),
        "why": why(plan, held),
        "could save": saves or "nothing",
    }


def why(plan: StoragePlan, held: Held) -> str:
    """The reason why a tensor is alive at the peak."""
    match held.kind:
        case "input":
            return "given by the caller"
        case "output":
            return "asked for"
        case "state":
            return "one step leaves it for the next"
        case "temporary":
            return "made and read in the same step"
        case _ if held.name == NAME and plan.arena is not None:
            return f"of {len(plan.arena.live_ranges)} stores, which share it"
        case _:
            readers = dict.fromkeys(n.name for n, _ in plan.graph.readers.get(held.name, ()))
            first = ", ".join(list(readers)[:3])
            more = f" and {len(readers) - 3} more" if len(readers) > 3 else ""
            return f"later steps of {first}{more} read it"
