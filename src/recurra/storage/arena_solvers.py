"""Stores of a program in one block of memory, at offsets that a solver gives.

    ctx.compile({B: 64, T: 200}, backend="numpy", placement="exact")

Those that are the caller's, inputs and outputs, stay apart, and so do offloaded ones. A solver is
"greedy", "exact", a function of a `Problem`, or a file of offsets as minimalloc writes it, of what
`to_csv` gives it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from recurra.cost.thresholds import ARENA_SEARCH_HALVINGS, ARENA_SEARCH_NODES, ARENA_SOLVER_TRIES
from recurra.errors import RecurraError, here
from recurra.storage.allocation import Solve, allocate, conflicts
from recurra.storage.arena import Arena
from recurra.storage.exact_packing import Packed, Packer
from recurra.storage.mapping_problem import Placement, Problem, ProblemError, Solution, nothing
from recurra.storage.storage_plan import StoragePlan

COLUMNS = ("id", "lower", "upper", "size", "offset")  # minimalloc's output

Asked = Solve | str | Path


def in_arena(plan: StoragePlan, asked: Asked) -> StoragePlan:
    """The plan with its stores in an arena, as they were asked to be placed."""
    own = [n for n, s in plan.stores.items() if not (s.output or s.given or s.room)]
    if isinstance(asked, Path) or (isinstance(asked, str) and asked.endswith(".csv")):
        path = Path(asked)
        try:
            text = path.read_text()
        except OSError as error:
            raise RecurraError(
                f"the offsets of {path} cannot be read", facts=error.strerror or "", loc=here()
            ) from None
        arena = from_csv(text, allocate(plan, stores=own), str(path))
    elif asked == "exact":
        arena = allocate(plan, exactly, "exact", ARENA_SEARCH_HALVINGS, own)
    elif asked == "greedy":
        arena = allocate(plan, stores=own)
    elif callable(asked):
        arena = allocate(plan, asked, getattr(asked, "__name__", "solve"), ARENA_SOLVER_TRIES, own)
    else:
        raise RecurraError(
            f"there is no placement {asked!r}",
            facts="there are 'greedy', 'exact', 'mapping', a file of offsets, and functions",
            hint="placement='greedy'",
            loc=here(),
        )
    return replace(plan, arena=arena)


def exactly(problem: Problem) -> Solution:
    """Everything at once, by branch and bound in two orders; nothing, if the nodes are used up.

    Raises ProblemError if it is proven that not all of it fits.
    """
    lives = [b.live_range for b in problem.buffers]
    times = {t: k for k, t in enumerate(sorted({first for first, _ in lives}))}
    starts = [times[first] for first, _ in lives]
    ends = [max(k for t, k in times.items() if t <= last) for _, last in lives]
    sizes = [b.size for b in problem.buffers]
    areas = [(b - a + 1) * n for a, b, n in zip(starts, ends, sizes, strict=True)]
    for key in (areas, sizes):
        order = sorted(range(len(key)), key=lambda i: -key[i])
        rank = sorted(range(len(key)), key=lambda i: order[i])
        packer = Packer(len(times), problem.fast_size, starts, ends, sizes, rank, by_load=True)
        found = packer.pack(ARENA_SEARCH_NODES)
        if found == Packed.NO:
            raise ProblemError(
                f"{problem.name} cannot be packed",
                facts=f"every order was tried; there are {problem.fast_size} B",
            )
        if found == Packed.YES:
            pairs = zip(packer.offset, lives, strict=True)
            return Solution(tuple(Placement(at, *life, copied=False) for at, life in pairs))
    return nothing(problem)


def to_csv(arena: Arena, offsets: bool = False) -> str:
    """The rows that minimalloc reads; with `offsets` those that it writes."""
    rows = [
        (x.store, str(x.first), str(x.last + 1), str(x.nbytes), str(at))
        for x, at in zip(arena.lives, arena.offsets, strict=True)
    ]
    count = len(COLUMNS) if offsets else len(COLUMNS) - 1
    return "\n".join(",".join(row[:count]) for row in (COLUMNS, *rows)) + "\n"


def from_csv(text: str, arena: Arena, where: str) -> Arena:
    """The arena with the offsets of a file. Raises ProblemError where they are not of its stores,
    or two that are alive at once have the same bytes."""
    found: dict[str, Mapping[str, str]] = {
        row["id"]: row for row in csv.DictReader(io.StringIO(text)) if row.get("id")
    }
    offsets: list[int] = []
    for x in arena.lives:
        row = found.pop(x.store, None)
        want = {"lower": x.first, "upper": x.last + 1, "size": x.nbytes}
        told = {k: row.get(k) for k in want} if row is not None else None
        if told != {k: str(v) for k, v in want.items()}:
            raise ProblemError(
                f"{where}: {x.store} is not the store of this program",
                facts=f"here it has {want}, there {told or 'no row'}",
                hint="write the file anew: placement.to_csv(program.arena())",
            )
        at = str(row.get("offset")) if row is not None else ""
        if not at.isdigit():
            raise ProblemError(f"{where}: the offset of {x.store} is {at!r}", facts="no number")
        offsets.append(int(at))
    if found:
        raise ProblemError(f"{where}: there is no store {next(iter(found))}", facts="in the arena")
    top = max((a + x.nbytes for a, x in zip(offsets, arena.lives, strict=True)), default=0)
    made = Arena(arena.lives, tuple(offsets), top, arena.load, Path(where).name, top == arena.load)
    if wrong := conflicts(made):
        raise ProblemError(f"{where}: the offsets do not hold", facts=wrong[0])
    return made
