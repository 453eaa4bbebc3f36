"""Summary: a compiled program as tables, charts and HTML, for people and for report.html."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recurra.compiler.pipeline import Compiled
from recurra.footprint import told
from recurra.memory.peak import KINDS, Peak
from recurra.memory.store import Axis
from recurra.program.steps import members, times
from recurra.schedule.dependences import dependences
from recurra.schedule.tree import Item, Loop

Row = dict[str, Any]


def store_rows(compiled: Compiled) -> list[Row]:
    """Return a row per store, and per variable that travels, with its shape and bytes."""
    plan = compiled.program.plan
    places = plan.arena.places if plan.arena else {}
    rows: list[Row] = [
        {
            "store": s.name,
            "kind": " × ".join(a.kind for a in s.kept) or "point",
            "shape": "×".join(map(str, s.shape(plan.sizes))),
            "slots": ", ".join(map(slots_text, s.kept)),
            "live": live_range(compiled, s.name),
            "class": "output" if s.output else "workspace, donated",
            "bytes": s.nbytes(plan.sizes),
            **({"offset": places.get(s.name, "")} if places else {}),
        }
        for s in plan.stores.values()
    ]
    return rows + variable_rows(compiled)


def variable_rows(compiled: Compiled) -> list[Row]:
    """Return a row per variable that travels along a loop that is launched in chunks."""
    plan = compiled.program.plan
    chunks = [(r.chunk, r.carried) for r in compiled.program.regions if r.chunk is not None]
    along: dict[str, str] = {}  # by the first stretch of its loop
    for loop, carried in chunks:
        for name in carried:
            along.setdefault(name, loop.dim)
    rows: list[Row] = []
    for name, dim in along.items():
        type_: Any = plan.statements.arrays[name].type
        rows.append(
            {
                "store": name,
                "kind": "variable, in place",
                "shape": "×".join(map(str, type_.sizes(plan.sizes))),
                "slots": "1",
                "live": f"across {dim}",
                "class": "carried, donated",
                "bytes": type_.nbytes(plan.sizes),
            }
        )
    return rows


def live_range(compiled: Compiled, name: str) -> str:
    """Return the loop that writes a store → the last loop that reads it."""
    paths, statements = compiled.schedule.paths(), compiled.plan.statements

    def place(statement: str) -> tuple[tuple[int, ...], str]:
        path = paths[statement]
        around = [x for _, x in path if x is not None]
        text = " / ".join(x.dim + ("" if x.step > 0 else " backwards") for x in around)
        return tuple(k for k, _ in path), text or "top"

    found = dependences(statements)
    readers = [place(r.sink) for r in found if r.ref.name == name and r.sink in paths]
    first = place(statements.writers[name][0].name)
    last, written = max(readers, default=first), first[1]
    return written if written == last[1] else f"{written} → {last[1]}"


def slots_text(axis: Axis) -> str:
    """Return `t: 8 + 8` for 8 points, as many of them twice."""
    return f"{axis.dim}: {axis.slots}" + (f" + {axis.room}" if axis.room else "")


def chart(compiled: Compiled) -> list[Row]:
    """Return when each inner loop's statements run: its steps, one loop after the other."""
    plan, rows = compiled.plan, list[Row]()
    now = 0

    def walk(items: tuple[Item, ...], around: str) -> None:
        nonlocal now
        for it in items:
            if not isinstance(it, Loop):
                continue
            name = f"{around}{it.dim}{'' if it.step > 0 else ' backwards'}"
            if any(isinstance(x, Loop) for x in it.body):
                walk(it.body, f"{name} / ")
                continue
            spans = {s: times(plan.statements, it, s, plan.sizes) for s in members(it.body)}
            first = min(lo for lo, _ in spans.values())
            for s, (lo, hi) in spans.items():
                at = {"start": now + lo - first, "stop": now + hi - first}
                rows.append({"statement": s, **at, "phase": f"{name} from {now}"})
            now += max(hi for _, hi in spans.values()) - first

    walk(compiled.schedule.items, "")
    return rows


def memory_summary(compiled: Compiled, peak: Peak) -> Mapping[str, Any]:
    """Return what is told of memory before the first step, as plain data for a page to draw."""
    history = [{"at": p.at, **p.kinds} for p in peak.history]
    rows = told.rows(compiled.program.plan, peak)
    return {"text": str(peak), "rows": rows, "names": KINDS, "points": history}
