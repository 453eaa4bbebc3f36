"""Place the stores of a program in one block of memory, at the offsets of a solver.

    ctx.compile({B: 64, T: 200}, backend="numpy", placement="exact")

Inputs, outputs and offloaded stores keep buffers of their own. A solver is "greedy", "exact",
a function of a `Problem`, or a file of offsets that minimalloc wrote for the rows of `to_csv`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from recurra.cost.thresholds import ARENA_SEARCH_HALVINGS, ARENA_SEARCH_NODES, ARENA_SOLVER_TRIES
from recurra.errors import RecurraError
from recurra.storage.arena import Arena
from recurra.storage.arena_offsets import Solve, allocate, conflicts
from recurra.storage.exact_packing import Packed, Packer
from recurra.storage.mapping_problem import Placement, Problem, ProblemError, Solution, nothing
from recurra.storage.storage_plan import StoragePlan

COLUMNS = ("id", "lower", "upper", "size", "offset")  # minimalloc's output

PlacementSolver = Solve | str | Path


def in_arena(plan: StoragePlan, solver: PlacementSolver) -> StoragePlan:
    """Return the plan with its stores in an arena, placed by a solver."""
    own = [n for n, s in plan.stores.items() if not (s.output or s.given or s.room)]
    if isinstance(solver, Path) or (isinstance(solver, str) and solver.endswith(".csv")):
        path = Path(solver)
        try:
            text = path.read_text()
        except OSError as error:
            raise RecurraError.at_user_line(
                f"the offsets of {path} cannot be read", facts=error.strerror or ""
            ) from None
        arena = from_csv(text, allocate(plan, stores=own), str(path))
    elif solver == "exact":
        arena = allocate(plan, exactly, "exact", ARENA_SEARCH_HALVINGS, own)
    elif solver == "greedy":
        arena = allocate(plan, stores=own)
    elif callable(solver):
        name = getattr(solver, "__name__", "solve")
        arena = allocate(plan, solver, name, ARENA_SOLVER_TRIES, own)
    else:
        raise RecurraError.at_user_line(
            f"there is no placement {solver!r}",
            facts="there are 'greedy', 'exact', 'mapping', a file of offsets, and functions",
            hint="placement='greedy'",
        )
    return replace(plan, arena=arena)


def exactly(problem: Problem) -> Solution:
    """Place all buffers by branch and bound in two orders; none if the search runs out of nodes.

    Raises ProblemError if it is proven that they do not all fit.
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
    """The rows that minimalloc reads or, with `offsets`, the rows that it writes."""
    rows = [
        (x.store, str(x.first), str(x.last + 1), str(x.nbytes), str(at))
        for x, at in zip(arena.live_ranges, arena.offsets, strict=True)
    ]
    count = len(COLUMNS) if offsets else len(COLUMNS) - 1
    return "\n".join(",".join(row[:count]) for row in (COLUMNS, *rows)) + "\n"


def from_csv(text: str, arena: Arena, where: str) -> Arena:
    """The arena with the offsets of a file.

    Raises ProblemError if they belong to other stores, or if two stores that are alive at once
    overlap.
    """
    rows: dict[str, Mapping[str, str]] = {
        row["id"]: row for row in csv.DictReader(io.StringIO(text)) if row.get("id")
    }
    offsets: list[int] = []
    for x in arena.live_ranges:
        row = rows.pop(x.store, {})
        expected = {"lower": x.first, "upper": x.last + 1, "size": x.nbytes}
        in_file = {k: row.get(k) for k in expected} if row else None
        if in_file != {k: str(v) for k, v in expected.items()}:
            raise ProblemError(
                f"{where}: {x.store} is not the store of this program",
                facts=f"here it has {expected}, there {in_file or 'no row'}",
                hint="write the file anew: placement.to_csv(program.arena())",
            )
        at = str(row.get("offset"))
        if not at.isdigit():
            raise ProblemError(f"{where}: the offset of {x.store} is {at!r}", facts="no number")
        offsets.append(int(at))
    if rows:
        raise ProblemError(f"{where}: there is no store {next(iter(rows))}", facts="in the arena")
    top = max((a + x.nbytes for a, x in zip(offsets, arena.live_ranges, strict=True)), default=0)
    placed = replace(
        arena, offsets=tuple(offsets), nbytes=top, by=Path(where).name, least=top == arena.load
    )
    if errors := conflicts(placed):
        raise ProblemError(f"{where}: the offsets do not hold", facts=errors[0])
    return placed
