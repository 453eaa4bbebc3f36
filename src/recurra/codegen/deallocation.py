"""Values that the host frees after an item of a program, since nothing later uses them.

Once they are in their stores, a prompt's keys and values are such.
"""

from __future__ import annotations

from typing import Literal

from recurra.codegen.early_exit import LastValue
from recurra.codegen.host_program import ChunkLoop, Program, RegionLaunch
from recurra.codegen.region import Region
from recurra.cost.thresholds import MIN_FREED_BYTES
from recurra.ir.types import Tuple

FreeableValue = tuple[Literal["variable", "store"], str]


def deallocations(program: Program) -> list[list[FreeableValue]]:
    """The values to free after each item; none in programs whose host does more than launch."""
    out: list[list[FreeableValue]] = [[] for _ in program.items]
    last: dict[FreeableValue, int] = {}
    for k, it in enumerate(program.items):
        if not isinstance(it, (ChunkLoop, RegionLaunch)):
            return [[] for _ in program.items]
        last |= dict.fromkeys(_things(it.region), k)
        if isinstance(it, ChunkLoop):
            last |= {("variable", name): k for pair in it.initial_values for name in pair}
            last |= dict.fromkeys(_past(it), k)
    for thing, k in last.items():
        is_large = _bytes(program, thing) >= MIN_FREED_BYTES
        if k + 1 < len(out) and is_large and not _outlives_run(program, thing):
            out[k].append(thing)
    return out


def _things(region: Region) -> list[FreeableValue]:
    variables: list[FreeableValue] = [
        ("variable", x) for x in (*region.held, *region.carried, *region.gives)
    ]
    return [*variables, *(("store", x) for x in (*region.stores, *region.reads))]


def _past(it: ChunkLoop) -> list[FreeableValue]:
    """The values that the end of a loop reads, and the stores that it fills."""
    if it.end is None:
        return []
    kept: list[FreeableValue] = [
        ("variable", x.name) for _, x in it.end.rest if isinstance(x, LastValue)
    ]
    return [*kept, *(_things(it.end.tail) if it.end.tail else [])]


def _outlives_run(program: Program, thing: FreeableValue) -> bool:
    """Is it an input or an output, or needed to resume the run?"""
    kind, name = thing
    for it in program.stretches:
        if name in (program.waiting(it) if kind == "store" else program.traveling(it)):
            return True
    store = program.plan.stores.get(name)
    return kind == "store" and (store is None or store.output or store.given)


def _bytes(program: Program, thing: FreeableValue) -> int:
    kind, name = thing
    plan = program.plan
    if kind == "store":
        return plan.stores[name].nbytes(plan.sizes)
    type_ = plan.statements.arrays[name].type
    return 0 if isinstance(type_, Tuple) else type_.nbytes(plan.sizes)
