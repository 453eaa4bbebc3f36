"""Compile a program so that a run stays within a memory budget, if that is possible.

    ctx.compile({B: 64, T: 200}, memory="8MiB")

The peak memory of a program is known before it runs (`Executable.memory`). If it is too high, the
program is compiled in other ways: with a higher price of stored bytes, so that learning recomputes
more of acting; in smaller tiles of its rows; with its largest stores on a disk. Of those that fit,
the cheapest by the cost model is taken.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from recurra.codegen.program_cost import program_ns
from recurra.codegen.region import Region
from recurra.compiler.options import CompileOptions
from recurra.cost.thresholds import BUDGET_MEMORY_PRICES, BUDGET_TILE_ROWS
from recurra.errors import here
from recurra.memory_model.budget import expect_room, needed
from recurra.memory_model.host_run import footprint
from recurra.memory_model.metered_regions import knows_temporary_bytes
from recurra.memory_model.peak import Peak
from recurra.runtime.executable import Executable
from recurra.storage.offload import Offload, stores_to_offload
from recurra.storage.storage_plan import StoragePlan
from recurra.support.byte_units import parse

More = Mapping[str, object]  # options that replace those of the user
Make = Callable[[CompileOptions], Executable]


@dataclass(frozen=True)
class BudgetCandidate:
    """A compiled program, its options, its peak bytes and its predicted nanoseconds.

    The peak is a lower bound if it is above the budget.
    """

    program: Executable
    more: More
    peak: int
    ns: float

    def __str__(self) -> str:
        how = [f"{k}={x:g}" for k, x in self.more.items() if k != "offload"]
        offload = self.more.get("offload")
        if isinstance(offload, Offload):
            how.append(f"{' and '.join(offload.stores or ('all that can',))} on a {offload.tier}")
        return ", ".join(how)


def compile_within_budget(make: Make, options: CompileOptions) -> Executable:
    """Compile with these options, or with others that make the program fit its memory budget.

    Raises PlanError with the least budget that would do if none does.
    """
    given = replace(options, memory=None)
    if options.memory is None:
        return make(given)
    budget, given = parse(options.memory), given.with_options({"single_launch": False})
    first = make(given)
    return cached_choice(make, given, first, budget) or choose_candidate(make, given, first, budget)


def cached_choice(
    make: Make, given: CompileOptions, first: Executable, budget: int
) -> Executable | None:
    """The choice of an earlier compilation, from the compilation cache (RECURRA_CACHE)."""
    found = first.compilation.kept and first.compilation.kept.get(f"memory-{budget}", pickle.loads)
    if not found:
        return None
    more, line = found
    best = make(given.with_options(more)) if more else first
    best.compiled.stages.cx.remark(line)
    return best


def choose_candidate(
    make: Make, given: CompileOptions, start: Executable, budget: int
) -> Executable:
    """The cheapest of the candidates that fit; the first one if that fits."""
    first = candidate(start, {}, budget)
    if first.peak <= budget:
        return record_choice(start, first, budget, [])
    if needed(between_launches(start)) > budget:  # no other way takes less
        expect_room(start.memory, budget, here())
    tried, fits = [first], list[BudgetCandidate]()
    for several in (recompute_candidates(given), offload_candidates(given, start.compiled.plan)):
        for more in several:
            tried.append(candidate(make(given.with_options(more)), more, budget))
            if tried[-1].peak <= budget:  # the first is the one that repeats, or moves, least
                fits.append(tried[-1])
                break
    if fits:
        best = min(fits, key=lambda w: w.ns)
        return record_choice(start, best, budget, [w for w in fits if w is not best])
    expect_room(least(tried), budget, here())
    raise AssertionError("what does not fit is refused")


def least(tried: Iterable[BudgetCandidate]) -> Peak:
    """The smallest peak. Candidates' peaks are lower bounds, so few regions need compiling."""
    ways = sorted(tried, key=lambda w: w.peak)
    best = ways[0].program.memory
    for w in ways[1:]:
        if w.peak < best.nbytes:
            best = min(best, w.program.memory, key=lambda p: p.nbytes)
    return best


def candidate(program: Executable, more: More, budget: int) -> BudgetCandidate:
    """Measure a program; regions are compiled to learn their memory only if the rest fits."""
    peak = between_launches(program).nbytes
    peak = program.memory.nbytes if peak <= budget else peak
    ns = program_ns(program.compiled.program, program.compilation.target.prices)
    return BudgetCandidate(program, more, peak, ns)


@dataclass
class NoTemporaries:
    """A backend whose launches take no memory beside their arguments and results."""

    donates: bool

    def temporary_bytes(self, plan: StoragePlan, region: Region, at: tuple[int, ...]) -> int:
        return 0


def between_launches(program: Executable) -> Peak:
    """The peak outside of launches, a lower bound: nothing is compiled to know it."""
    backend = program.backend
    if not knows_temporary_bytes(backend):
        return program.memory
    return footprint(program.compiled.program, NoTemporaries(backend.donates))


def recompute_candidates(given: CompileOptions) -> Iterator[More]:
    """Options that recompute more, from what repeats least to what repeats most."""
    memory_prices = BUDGET_MEMORY_PRICES if given.tuning.memory_price is None else ()
    rows = BUDGET_TILE_ROWS if given.tuning.tile_rows is None else ()
    yield from ({"memory_price": h} for h in memory_prices)
    most = {"memory_price": memory_prices[-1]} if memory_prices else {}
    yield from ({**most, "tile_rows": r} for r in rows)


def offload_candidates(given: CompileOptions, plan: StoragePlan) -> Iterator[More]:
    """Options that offload the largest store, the two largest, four, ..; all, and recompute."""
    if given.offload is not None or given.workers > 1 or given.check:
        return
    names = tuple(stores_to_offload(plan, Offload(least=0)))
    for k in sorted({min(1 << k, len(names)) for k in range(len(names))}):
        yield {"offload": Offload(least=0, stores=names[:k])}
    if names and given.tuning.memory_price is None:
        yield {"memory_price": BUDGET_MEMORY_PRICES[-1], "offload": Offload(least=0)}


def record_choice(
    start: Executable, best: BudgetCandidate, budget: int, others: Iterable[BudgetCandidate]
) -> Executable:
    """Record in `decisions` what was chosen, and what else would fit; cache both."""
    line = f"memory: {best.peak:,} of {budget:,} B {f'by {best}' if best.more else 'as it is'}"
    line += "".join(f"; {w} would take {w.ns / best.ns:.3g} times as long" for w in others)
    best.program.compiled.stages.cx.remark(line)
    if start.compilation.kept:
        start.compilation.kept.put(f"memory-{budget}", pickle.dumps((dict(best.more), line)))
    return best.program
