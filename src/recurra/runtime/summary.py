"""A compiled program as tables, charts and HTML, for people and for report.html."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from recurra.backends.protocol import Backend
from recurra.codegen.host_source import host_source
from recurra.codegen.loop_segments import times
from recurra.compiler.pass_manager import PassRow
from recurra.compiler.pipeline import Compiled
from recurra.ir.graph import Graph
from recurra.ir.types import Tuple
from recurra.memory_model import summary
from recurra.memory_model.host_run import footprint
from recurra.memory_model.metered_regions import knows_temporary_bytes
from recurra.memory_model.peak import KINDS, Peak
from recurra.report.html import code, folds_html, table
from recurra.runtime.compilation import Compilation
from recurra.runtime.inputs import ProgramInput
from recurra.schedule.dependences import dependences
from recurra.schedule.tree import Item, Loop, members
from recurra.storage.arena import Arena
from recurra.storage.arena_offsets import Solve, allocate
from recurra.storage.store import StoredAxis

Row = dict[str, Any]


class InspectableProgram:
    """A compiled program's tables and figures; the data are those of `report.page`."""

    def __init__(self, compilation: Compilation) -> None:
        self.compilation = compilation

    @property
    def compiled(self) -> Compiled:
        """The results of compiling: stages, schedule, plan and host program."""
        return self.compilation.compiled

    @property
    def backend(self) -> Backend:
        """The backend that runs the regions."""
        return self.compilation.backend

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bounds of the program."""
        return self.compilation.written.sizes

    @property
    def inputs(self) -> Mapping[str, ProgramInput]:
        """Every rc.input of the program."""
        return self.compilation.inputs

    @property
    def source_graph(self) -> Graph:
        """The equations as they were written."""
        return self.compilation.written.graph

    @property
    def logs(self) -> Mapping[str, str]:
        """The equation behind each name of rc.log and rc.output."""
        return self.compilation.written.logs

    @property
    def outputs(self) -> Mapping[str, str]:
        """The equation of the compiled program behind each output of `source_graph`."""
        return self.compilation.outputs

    # ---- the stages of compilation

    @property
    def equations(self) -> dict[str, str]:
        """The graph after every stage, as text."""
        return {name: str(g) for name, g in self.compiled.stages.graphs.items()}

    @property
    def schedule_text(self) -> str:
        """The loops, and the statements in them."""
        return str(self.compiled.schedule)

    @property
    def source(self) -> str:
        """The host part as Python, below the signatures of the regions."""
        heads = "\n".join(f"# {r}" for r in self.compiled.program.regions)
        return f"{heads}\n{host_source(self.compiled.program)}"

    @property
    def pass_rows(self) -> list[PassRow]:
        """A row per pass that ran: equations before and after, ms."""
        return list(self.compiled.stages.rows)

    @property
    def store_rows(self) -> list[Row]:
        """A row per store and carried variable: kind, shape, slots, live, class, bytes."""
        return store_rows(self.compiled)

    @property
    def contraction_rows(self) -> Sequence[Row]:
        """A row per contraction with the gain of its kernel, for regions compiled so far."""
        return getattr(self.backend, "contraction_rows", ())

    @property
    def chart(self) -> list[Row]:
        """The steps of each statement of each inner loop, one loop after the other."""
        return chart(self.compiled)

    @cached_property
    def memory(self) -> Peak:
        """The most bytes that a run holds at once: when, of what, and for other bounds.

        On JAX and Torch it is the memory of the device, for one worker; where XLA runs regions,
        they are compiled now. Host functions and the libraries themselves come on top.
        """
        tells = self.backend if knows_temporary_bytes(self.backend) else None
        return footprint(self.compilation.single or self.compiled.program, tells)

    @property
    def preflight(self) -> Mapping[str, object] | None:
        """The memory summary shown before the first step, as plain data for `report.page`.

        On PyTorch, which takes seconds to measure memory, only if `memory` has been read before.
        """
        if self.backend.name == "torch" and "memory" not in vars(self):
            return None
        return memory_summary(self.compiled, self.memory)

    def arena(self, solve: Solve | None = None) -> Arena:
        """The layout of all stores in one block of memory, and its waste.

        `solve` packs instead of the greedy rule, say a solver of `recurra.mapping`. A program with
        a `placement` returns the arena that it runs in.
        """
        if solve is None and (own := self.compiled.program.plan.arena) is not None:
            return own
        return allocate(self.compiled.plan, solve)

    def __repr__(self) -> str:
        head = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        return f"program for {head}\n{self.schedule_text}"

    def _repr_html_(self) -> str:
        head = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        last = list(self.equations)[-1]
        folds = {
            "schedule": code(self.schedule_text),
            "memory": table(self.store_rows, bar="bytes"),
            "memory as one arena": code(str(self.arena())),
            "host program": code(self.source),
            "passes": table(self.pass_rows, bar="ms"),
            "contractions": table(self.contraction_rows),
            f"equations after {last}": code(self.equations[last]),
        }
        return folds_html(f"program for {head}" if head else "program", folds)


def store_rows(compiled: Compiled) -> list[Row]:
    """Return a row per store, and per carried variable, with its shape and bytes."""
    plan = compiled.program.plan
    places = plan.arena.places if plan.arena else {}
    readers: dict[str, list[str]] = {}
    for r in dependences(compiled.plan.statements):
        readers.setdefault(r.ref.name, []).append(r.sink)
    rows: list[Row] = [
        {
            "store": s.name,
            "kind": " × ".join(a.kind for a in s.kept) or "point",
            "shape": "×".join(map(str, s.shape(plan.sizes))),
            "slots": ", ".join(map(slots_text, s.kept)),
            "live": live_range(compiled, s.name, readers.get(s.name, ())),
            "class": "output" if s.output else "workspace, donated",
            "bytes": s.nbytes(plan.sizes),
            **({"offset": places.get(s.name, "")} if places else {}),
        }
        for s in plan.stores.values()
    ]
    return rows + variable_rows(compiled)


def variable_rows(compiled: Compiled) -> list[Row]:
    """Return a row per variable carried along a loop that is launched in chunks."""
    plan = compiled.program.plan
    chunks = [(r.chunk, r.carried) for r in compiled.program.regions if r.chunk is not None]
    along: dict[str, str] = {}  # by the first segment of its loop
    for loop, carried in chunks:
        for name in carried:
            along.setdefault(name, loop.dim)
    rows: list[Row] = []
    for name, dim in along.items():
        type_ = plan.statements.arrays[name].type
        assert not isinstance(type_, Tuple)
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


def live_range(compiled: Compiled, name: str, readers: Sequence[str]) -> str:
    """Return the loop that writes a store → the last loop in which a statement reads it."""
    paths, statements = compiled.schedule.paths(), compiled.plan.statements

    def place(statement: str) -> tuple[tuple[int, ...], str]:
        path = paths[statement]
        around = [x for _, x in path if x is not None]
        text = " / ".join(x.dim + ("" if x.step > 0 else " backwards") for x in around)
        return tuple(k for k, _ in path), text or "top"

    first = place(statements.writers[name][0].name)
    last = max((place(r) for r in readers if r in paths), default=first)
    written = first[1]
    return written if written == last[1] else f"{written} → {last[1]}"


def slots_text(axis: StoredAxis) -> str:
    """Return `t: 8 + 8` for 8 points, all of them mirrored."""
    return f"{axis.dim}: {axis.slots}" + (f" + {axis.room}" if axis.room else "")


def chart(compiled: Compiled) -> list[Row]:
    """Return the start and stop of each statement of each inner loop, one loop after the other."""
    plan, rows, now = compiled.plan, list[Row](), 0
    for name, loop in _inner_loops(compiled.schedule.items, ""):
        spans = {s: times(plan.statements, loop, s, plan.sizes) for s in members(loop.body)}
        first = min(lo for lo, _ in spans.values())
        for s, (lo, hi) in spans.items():
            at = {"start": now + lo - first, "stop": now + hi - first}
            rows.append({"statement": s, **at, "phase": f"{name} from {now}"})
        now += max(hi for _, hi in spans.values()) - first
    return sorted(rows, key=lambda row: row["start"])


def _inner_loops(items: tuple[Item, ...], around: str) -> Iterator[tuple[str, Loop]]:
    """The loops without inner loops, by the dims of the loops around them and their own."""
    for loop in items:
        if not isinstance(loop, Loop):
            continue
        name = f"{around}{loop.dim}{'' if loop.step > 0 else ' backwards'}"
        if any(isinstance(x, Loop) for x in loop.body):
            yield from _inner_loops(loop.body, f"{name} / ")
        else:
            yield name, loop


def memory_summary(compiled: Compiled, peak: Peak) -> Mapping[str, object]:
    """Return the memory summary shown before the first step, as plain data for a page."""
    history = [{"at": p.at, **p.kinds} for p in peak.history]
    rows = summary.rows(compiled.program.plan, peak)
    return {"text": str(peak), "rows": rows, "names": KINDS, "points": history}
