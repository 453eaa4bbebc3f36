"""The host part of a program as Python source: readable, and what really runs.

    for i_ in range(i_from, 100, 8):
        i__end = min(i_ + 8, 100)
        W_, b_ = region_2_i(seed, i_, i__end, W_, b_)
        yield run.report('i', i_, i__end, {'length': length_store}, {'W': W_, 'b': b_})
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from recurra.program.lower import ChunkLoop, HostCall, HostItem, HostLoop, Launch, Program
from recurra.program.region import Region
from recurra.schedule.tree import Loop, equation


def source(program: Program) -> str:
    """def main(run): ... over the program's regions; `run` holds the compiled functions and reports."""
    body = [f"    {variable(x)} = run.neutral({x!r})" for x in program.starts]
    body += _items(program, program.items, 1)
    names = sorted({r.name for r in program.regions})
    head = [f"    {n} = run.regions[{n!r}]" for n in names]
    calls = sorted({c for c in _calls(program.items)})
    head += [f"    {variable(c)}call = run.calls[{c!r}]" for c in calls]
    state = _state(program)
    head += [f"    {variable(v)} = run.variables[{v!r}]" for v in state]
    head += [f"    {store(s)} = run.stores[{s!r}]" for s in program.plan.stores]
    tail = ["    return " + _dict(state, variable) + ", " + _dict(program.plan.stores, store)]
    body = body if any("yield" in line for line in body) else [*body, "    yield from ()"]
    return "\n".join(["def main(run, seed, copy):", *head, *body, *tail])


def _dict(names: Iterable[str], spell: Callable[[str], str]) -> str:
    return "{" + ", ".join(f"{n!r}: {spell(n)}" for n in names) + "}"


def variable(name: str) -> str:
    """A Python name for a variable; the running value of a fold gets one of its own."""
    plain = re.sub(r"\W", "_", equation(name))
    return f"{plain}_so_far" if name.startswith("+") else f"{plain}_"


def store(name: str) -> str:
    return f"{re.sub(r'[^0-9a-zA-Z_]', '_', name)}_store"


def _state(program: Program) -> list[str]:
    """Every variable that crosses a border."""
    out: dict[str, None] = {}
    for r in program.regions:
        out.update(dict.fromkeys((*r.held, *r.carried, *r.gives)))
    for c in _calls(program.items):
        out[c] = None
        for k, a in enumerate(program.plan.graph[c].args):
            if program.plan.accesses[c, k].how != "store":
                out[a.name] = None
    for s in _seeds(program.items):
        out.update(dict.fromkeys(s))
    return list(out)


def _seeds(items: tuple[HostItem, ...]) -> Iterator[tuple[str, str]]:
    for it in items:
        if isinstance(it, (HostLoop, ChunkLoop)):
            yield from it.seeds
        if isinstance(it, HostLoop):
            yield from _seeds(it.body)


def _calls(items: tuple[HostItem, ...]) -> Iterator[str]:
    for it in items:
        if isinstance(it, HostCall):
            yield it.statement
        elif isinstance(it, HostLoop):
            yield from _calls(it.body)


def _items(program: Program, items: tuple[HostItem, ...], depth: int) -> Iterator[str]:
    pad = "    " * depth
    for it in items:
        match it:
            case Launch(region=r):
                yield pad + _launch(r, [clock(x) for x in r.around])
            case HostCall(statement=s, around=around):
                yield pad + _call(program, s, around)
            case ChunkLoop():
                for x, init in it.seeds:
                    yield f"{pad}{variable(x)} = copy({variable(init)})"
                u = clock(it.loop)
                state = it.region.carried
                yield f"{pad}{_enter(it.loop, it.lo, state)}"
                yield f"{pad}for {u} in range({u}from, {it.hi}, {it.size}):"
                yield f"{pad}    {u}_end = min({u} + {it.size}, {it.hi})"
                yield f"{pad}    {_launch(it.region, [u, f'{u}_end'])}"
                yield f"{pad}    {_report(program, it.loop, f'{u}_end', it.region.stores, state)}"
            case HostLoop():
                for x, init in it.seeds:
                    yield f"{pad}{variable(x)} = copy({variable(init)})"
                u, outer = clock(it.loop), depth == 1
                state = tuple(v for v in _state(program) if v in program.plan.carried.get(id(it.loop), ()))
                if outer:
                    yield f"{pad}{_enter(it.loop, it.lo, state)}"
                yield f"{pad}for {u} in range({f'{u}from' if outer else it.lo}, {it.hi}):"
                yield from (f"{pad}    {variable(x)} = run.neutral({x!r})" for x in it.starts)
                yield from _items(program, it.body, depth + 1)
                if outer:
                    yield f"{pad}    {_report(program, it.loop, f'{u} + 1', tuple(program.plan.stores), state)}"


def clock(loop: Loop) -> str:
    return f"{loop.dim}_" if loop.step > 0 else f"{loop.dim}_back"


def _enter(loop: Loop, lo: int, state: tuple[str, ...]) -> str:
    """Where a resumed run goes on: the time, and the variables that travel along the loop."""
    names = ", ".join(map(variable, state))
    return f"{clock(loop)}from, ({names}{',' if len(state) == 1 else ''}) = run.enter({lo}, {_dict(state, variable)})"


def _report(program: Program, loop: Loop, end: str, stores: tuple[str, ...], state: tuple[str, ...]) -> str:
    outs = [s for s in stores if program.plan.stores[s].output]
    return f"yield run.report({loop.dim!r}, {clock(loop)}, {end}, {_dict(outs, store)}, {_dict(state, variable)})"


def _launch(r: Region, ints: list[str]) -> str:
    given = [*map(variable, r.gives), *map(store, r.stores)]
    taken = ["seed", *ints, *map(variable, (*r.held, *r.carried)), *map(store, r.stores)]
    call = f"{r.name}({', '.join(taken)})"
    return f"{', '.join(given)}{',' if len(given) == 1 else ''} = {call}" if given else call


def _call(program: Program, s: str, around: tuple[Loop, ...]) -> str:
    """Operands come as variables or as reads of stores; the results become a variable."""
    args: list[str] = []
    for k, a in enumerate(program.plan.graph[s].args):
        how = program.plan.accesses[s, k].how
        args.append(variable(a.name) if how != "store" else store(a.name))
    times = "(" + "".join(f"{clock(x)}, " for x in around) + ")"
    return f"{variable(s)} = {variable(s)}call({', '.join([times, *args])})"
