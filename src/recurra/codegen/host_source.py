"""The host part of a program as Python source: readable, and what really runs.

W, b = copy(W_0), copy(b_0)
i_from, (W, b) = run.enter(0, {'W': W, 'b': b})
for i, i_end in run.launches(i_from, 100, 8):
    W, b, o_store = region_2_i(seed, i, i_end, W, b, o_store)
    yield run.report('i', i, i_end, {'length': length_store}, {'W': W, 'b': b})
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from textwrap import wrap

from recurra.codegen.deallocation import deallocations
from recurra.codegen.early_exit import LastValue, early_exits
from recurra.codegen.host_program import (
    ChunkLoop,
    HostCall,
    HostEnd,
    HostItem,
    HostLoop,
    Program,
    RegionLaunch,
    RenamedVariable,
    at_any_depth,
    calls_of,
    renamed_variables,
)
from recurra.codegen.region import Region, stores_read
from recurra.ir.expr import FALSE, TRUE, Expr, Sym, substitute
from recurra.schedule.tree import Loop, members
from recurra.storage.store import store_key
from recurra.support.source_text import FreeNames, tuple_of

WIDTH = 100
_GLUE = "\N{NO-BREAK SPACE}"  # outside brackets, and inside of strings, a line cannot be broken
_PARTS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|.", re.DOTALL)  # strings whole
_QUOTES = ("'", '"')
_TAKEN = {"run", "seed", "copy", "range"}
_CONSTANT: dict[object, object] = {TRUE: True, FALSE: False}
_CLOCKS = {"clock": "", "back": "_back", "launched": "_end", "from": "_from"}


def host_source(program: Program) -> str:
    """The source of `main(run, seed, copy)`, a generator of a Step per outermost launch."""
    w = _HostWriter(program)
    w.line("def main(run, seed, copy):")
    w.depth = 1
    regions = sorted({r.name for r in program.regions})
    w.group(regions, str, "run.regions")
    w.group(calls_of(program.items), w.call_name, "run.calls")
    w.group([x for x in w.state if x not in program.values], w.variable, "run.variables")
    local = {*program.values, *(s for r in program.regions for s in r.local)}
    w.group([s for s in program.plan.stores if s not in local], w.store, "run.stores")
    for x in program.starts:
        w.line(f"{w.variable(x)} = run.neutral({x!r})")
    for it, freed in zip(program.items, deallocations(program), strict=True):
        w.items((it,))
        if freed:
            spell = {"variable": w.variable, "store": w.store}
            w.line(" = ".join([*(spell[kind](name) for kind, name in freed), "None"]))
    if not any("yield" in text for text in w.lines):
        w.line("yield from ()")
    outputs = [n for n, s in program.plan.stores.items() if s.output]
    w.line(f"return {w.dict(outputs, w.output)}")
    return "\n".join(w.lines) + "\n"


@dataclass
class _HostWriter:
    """The lines of source, and the names of things in it."""

    program: Program
    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def __post_init__(self) -> None:
        self.state = _state(self.program)
        self.spelt: dict[tuple[str, str], str] = {}
        self.names = FreeNames({*_TAKEN, *keyword.kwlist, *(r.name for r in self.program.regions)})
        for dim in self.program.plan.graph.declared:
            for kind, end in _CLOCKS.items():
                self.spell(kind, dim, end)

    # ---- names

    def spell(self, kind: str, name: str, end: str = "") -> str:
        """The name of a thing in the source: like its own, and used for nothing else."""
        if (kind, name) not in self.spelt:
            self.spelt[kind, name] = self.names.named(f"{name}{end}")
        return self.spelt[kind, name]

    def variable(self, name: str) -> str:
        """The name of a variable; the running value of a fold has a name of its own."""
        writers = self.program.plan.statements.writers[name]
        if any(w.accumulates for w in writers):
            return self.spell("fold", writers[0].equation, "_so_far")
        return self.spell("variable", name)

    def store(self, name: str) -> str:
        return self.spell("store", name, "_store")

    def output(self, name: str) -> str:
        return self.variable(name) if name in self.program.values else self.store(name)

    def call_name(self, name: str) -> str:
        return self.spell("call", name, "_call")

    def clock(self, loop: Loop) -> str:
        return self.spell("clock" if loop.step > 0 else "back", loop.dim)

    def launched(self, loop: Loop) -> str:
        """The name of the time at which a launch ends."""
        return self.spell("launched", loop.dim)

    # ---- lines

    def line(self, text: str) -> None:
        """Write one statement; a long one is folded inside its brackets."""
        pad, depth, glued = "    " * self.depth, 0, ""
        for part in _PARTS.findall(text):
            depth += (part in "([{") - (part in ")]}")
            glued += part.replace(" ", _GLUE) if depth == 0 or part[0] in _QUOTES else part
        folded = wrap(
            glued,
            WIDTH - len(pad),
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        self.lines += [pad + part.replace(_GLUE, " ") for part in folded]

    def group(self, names: Iterable[str], spell: Callable[[str], str], origin: str) -> None:
        """Bind several names to entries of one table."""
        found = list(names)
        if found:
            keys = ", ".join(map(repr, found))
            self.line(f"{tuple_of(map(spell, found))} = {origin}({keys})")

    def dict(self, names: Iterable[str], spell: Callable[[str], str]) -> str:
        return "{" + ", ".join(f"{n!r}: {spell(n)}" for n in names) + "}"

    # ---- items

    def items(self, items: tuple[HostItem, ...]) -> None:
        for it in items:
            match it:
                case RegionLaunch(region=r, span=span):
                    plan = self.program.plan
                    for e in (
                        e for e in early_exits(plan.schedule, plan.sizes) if e.going in r.found
                    ):
                        self.line(f"{self.end(e.going)} = {e.points}")
                    times = map(str, span) if span else map(self.end, r.ends)
                    with self.guarded(it.when, r.around):
                        self.launch(r, [*map(self.clock, r.around), *times])
                        for known in map(self.end, r.found):
                            self.line(f"{known} = run.ended({known})")
                        self.write_renaming(it.after)
                case HostCall():
                    with self.guarded(it.when, it.around):
                        self.call(it)
                case ChunkLoop():
                    self.chunk_loop(it)
                case HostLoop():
                    self.host_loop(it)

    @contextmanager
    def guarded(self, condition: Expr, around: Iterable[Loop]) -> Generator[None]:
        """Write the lines of the block so that they run under a condition."""
        if condition != TRUE:
            clocks: dict[str, Expr | int] = {x.dim: Sym(self.clock(x)) for x in around}
            known = substitute(substitute(condition, self.program.plan.sizes), clocks)
            self.line(f"if {_CONSTANT.get(known, known)}:")
            self.depth += 1
        yield
        self.depth -= condition != TRUE

    def ints(self, region: Region) -> list[str]:
        """The times that a region takes as arguments."""
        return [*map(self.clock, region.around), *map(self.end, region.ends)]

    def end(self, going: str) -> str:
        return self.spell("end", going, "_ended")

    def launch(self, region: Region, ints: list[str]) -> None:
        stores = [self.buffer(s, region.name, region.around) for s in region.stores]
        known = [self.end(e) for e in region.ends if region.polls]
        if region.is_empty:
            return
        results = [*known, *map(self.variable, region.gives), *stores]
        arguments = ["seed", *ints, *map(self.variable, (*region.held, *region.carried))]
        for s in (*region.stores, *region.reads):
            access = self.access(s, region) if s in region.stores else ""
            arguments.append(self.buffer(s, region.name, region.around, access))
        call = f"{region.name}({', '.join(arguments)})"
        self.line(f"{tuple_of(results)} = {call}" if results else call)

    def write_renaming(self, after: tuple[RenamedVariable, ...]) -> None:
        names = [self.variable(x.variable) for x in after]
        index = ["" if x.result is None else f"[{x.result}]" for x in after]
        values = [self.variable(x.source) + k for x, k in zip(after, index, strict=True)]
        if len(after) == 1:
            self.line(f"{names[0]} = {values[0]}")
        elif after:
            self.line(f"{tuple_of(names)} = {tuple_of(values)}")

    def buffer(self, name: str, reader: str, around: Iterable[Loop], access: str = "") -> str:
        """A store, or its buffer for the current point, as an argument of a launch or call."""
        at = self.program.places.get(reader, {}).get(name)
        if at is None:
            return self.store(name)
        index = substitute(at, {x.dim: Sym(self.clock(x)) for x in around})
        return f"{self.store(name)}{access}" + (f"({index})" if access else f"[{index}]")

    def access(self, name: str, region: Region) -> str:
        """The method by which a launch gets a point to write of an offloaded store.

        It is any memory (`empty`), unless the launch reads or keeps a part of it (`writable`).
        """
        plan = self.program.plan
        store = plan.stores[name]
        if not store.room:
            return ""
        is_changed = len(store.kept) > 1 or name in stores_read(plan, region.statements)
        return ".writable" if is_changed else ".empty"

    def call(self, it: HostCall) -> None:
        """Write a host call: operands are variables or reads of stores, its result a variable."""
        plan = self.program.plan
        args = [tuple_of(self.clock(x) for x in it.around)]
        for k, a in enumerate(plan.statements[it.statement].args):
            stored = plan.access(it.statement, k) == "store"
            buffer = self.buffer(a.name, it.statement, it.around)
            args.append(buffer if stored else self.variable(a.name))
        self.line(
            f"{self.variable(it.statement)} = {self.call_name(it.statement)}({', '.join(args)})"
        )

    def initial_values(self, seeds: tuple[tuple[str, str], ...]) -> None:
        if seeds:
            left = tuple_of(self.variable(x) for x, _ in seeds)
            self.line(f"{left} = {tuple_of(f'copy({self.variable(init)})' for _, init in seeds)}")

    def enter(self, it: ChunkLoop | HostLoop) -> str:
        """The first time of a loop; a resumed run enters the main loop at a later one."""
        stretches = self.program.stretches
        if not any(it is x for x in stretches):
            return str(it.lo)
        if it is not stretches[0]:
            return f"run.later({it.lo})"
        start, names = self.spell("from", it.loop.dim), tuple_of(self.border(it).values())
        self.line(f"{start}, {names} = run.enter({it.lo}, {self.border_dict(it)})")
        return start

    def border(self, it: ChunkLoop | HostLoop) -> dict[str, str]:
        """The state after a step of the main loop, by name: x, a variable; x[], a store."""
        stores = {store_key(n): self.store(n) for n in self.program.waiting(it)}
        known = {it.end.border: self.end(it.end.going)} if it.end else {}
        return {n: self.variable(n) for n in self.program.traveling(it)} | stores | known

    def border_dict(self, it: ChunkLoop | HostLoop) -> str:
        border = self.border(it) if any(it is x for x in self.program.stretches) else {}
        return self.dict(border, border.__getitem__)

    def report(self, it: ChunkLoop | HostLoop, end: str, stores: Iterable[str]) -> None:
        """Report a step of an outermost loop; only the main loop reports its state."""
        outs = [s for s in stores if self.program.plan.stores[s].output]
        parts = [repr(it.loop.dim), self.clock(it.loop), end]
        parts += [self.dict(outs, self.store), self.border_dict(it)]
        parts += [self.end(it.end.going)] if it.end else []
        self.line(f"yield run.report({', '.join(parts)})")

    def chunk_loop(self, it: ChunkLoop) -> None:
        self.initial_values(it.initial_values)
        u, end = self.clock(it.loop), it.end
        self.points(end)
        until = self.launched(it.loop)
        self.line(f"for {u}, {until} in run.launches({self.enter(it)}, {it.hi}, {it.size}):")
        self.depth += 1
        self.stop(u, end)
        self.launch(it.region, [u, until, *([self.end(end.going)] if end else [])])
        if end and end.polls:
            known = self.end(end.going)
            self.line(f"{known} = run.ended({known})")
        self.report(it, until, it.region.stores)
        self.depth -= 1
        self.past(end)

    def points(self, end: HostEnd | None) -> None:
        """Write the start of a loop that ends by data: the end is the most points at first."""
        if end and end.first:
            self.line(f"{self.end(end.going)} = {end.points}")

    def stop(self, time: str, end: HostEnd | None) -> None:
        """Write the start of a step: leave the loop if all rows have ended."""
        if end:
            late = f" + {end.late}" if end.late else ""
            self.line(f"if {time} >= {self.end(end.going)}{late}:")
            self.lines.append("    " * (self.depth + 1) + "break")

    def past(self, end: HostEnd | None) -> None:
        """Write the end of the last segment: fill the points past the end of all rows."""
        if end and end.tail:
            self.launch(end.tail, self.ints(end.tail))
        if end and end.rest:
            values = {
                n: self.variable(x.name) if isinstance(x, LastValue) else repr(x)
                for n, x in end.rest
            }
            values = self.dict(values, values.__getitem__)
            self.line(f"run.rest({values}, {self.end(end.going)})")

    def host_loop(self, it: HostLoop) -> None:
        self.initial_values(it.initial_values)
        u, outer, end = self.clock(it.loop), self.depth == 1, it.end
        self.points(end)
        start = self.enter(it) if outer else str(it.lo)
        self.line(f"for {u} in range({start}, {it.hi}):")
        self.depth += 1
        self.stop(u, end)
        for x in it.starts:
            self.line(f"{self.variable(x)} = run.neutral({x!r})")
        self.items(it.body)
        if end and end.polls:
            after = f"{u} + {1 - it.loop.shift[end.going]}"
            known = self.end(end.going)
            self.line(f"{known} = run.end({self.variable(end.going)}, {known}, {after})")
        if outer:
            mine = set(map(self.program.plan.written, members(it.loop.body)))
            self.report(it, f"{u} + 1", [s for s in self.program.plan.stores if s in mine])
        self.depth -= 1
        self.past(end)


def _state(program: Program) -> list[str]:
    """Every variable that a region, call or loop passes on."""
    out: dict[str, None] = {}
    for r in program.regions:
        out.update(dict.fromkeys((*r.held, *r.carried, *r.gives)))
    for x in renamed_variables(program.items):
        out |= {x.variable: None, x.source: None}
    for c in calls_of(program.items):
        out[c] = None
        for k, a in enumerate(program.plan.statements[c].args):
            if program.plan.access(c, k) != "store":
                out[a.name] = None
    for it in at_any_depth(program.items):
        for pair in it.initial_values if isinstance(it, (HostLoop, ChunkLoop)) else ():
            out.update(dict.fromkeys(pair))
    return list(out)
