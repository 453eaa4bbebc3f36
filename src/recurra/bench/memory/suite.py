"""`recurra bench memory`: large observations, within a budget that the system enforces.

Parts, in this order; `--only` takes some of them:

    fit      PPO on larger and larger pictures: who ends within the budget, and what it takes
    speed    what a budget that is no matter costs, and stores on the host or a disk
    returns  REINFORCE with returns of 8 and 64 steps, and Monte Carlo, on the largest pictures

Answers are compared at a small size first. Memory and speed are measured in processes of their
own; for memory the C library gives back what is freed (MALLOC_MMAP_THRESHOLD_). What the runtime
takes by itself, the same program on next to nothing, is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from recurra.bench.harness import Case, Contestant, Row, check, paired, progress, without
from recurra.bench.memory.limit import limited
from recurra.bench.memory.work import Work
from recurra.bench.parts import named
from recurra.bench.process import Ended, Process, interleaved
from recurra.bench.worker import name_of

HERE = "recurra.bench.memory"
PEERS = (f"{HERE}.schemes_jax:purejaxrl", f"{HERE}.schemes_torch:cleanrl")
PARTS = ("fit", "speed", "returns")
MB = 10**6
BUDGET = 104 * MB  # above the runtime's own
PROGRAM = "72MiB"  # of arrays; the rest is for code that grows with it, and what is read ahead
SIDES, QUICK_SIDES = (64, 128, 256), (64,)
SMALL = Work(side=16, B=2, T=4)
FITS = Work(side=64, T=64)  # needs no help within PROGRAM
MOVED = Work(side=128, T=128)
FREED = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}
ITERATIONS = 2
SLOWER = {"host": 1.5, "disk": 3.0}  # at most so many times as long as without
DEFAULT, LEAST = 0.6, 1 / 16  # of the memory of peers: by itself, and with a budget


@dataclass(frozen=True)
class Used:
    """A process: the most bytes it held, and whether the system ended it for that."""

    name: str
    nbytes: int
    killed: bool


def suite(
    ours: Callable[[Work], Contestant], quick: bool = False, only: str | None = None
) -> list[Row]:
    """All rows; `ours(work)` is called, by its name, in other processes."""
    mine, parts = name_of(ours), named("memory", PARTS, only)
    rows: list[Row] = []
    if "fit" in parts:
        rows += fit(mine, quick)
    if "speed" in parts:
        rows += speed(mine, quick)
    if "returns" in parts:
        rows += returns(mine, quick)
    return rows


def agreed(makes: tuple[str, ...], work: Work) -> None:
    """Raises Disagreement where programs do not compute the same."""
    found: list[tuple[Contestant, Mapping[str, np.ndarray]]] = []
    for make in makes:
        with Process(make, work, 1) as p:
            them = p.contestant()
        found.append((them, them.answer()))
        progress(f"{work}: {them.name}: checked {check(found[0], found[-1])}")


def used(make: str, work: Work, nbytes: int = 0) -> Used:
    """Some iterations, under a limit of so many bytes, if any."""
    with limited(nbytes) as limit:
        try:
            with Process(make, work, 1, before=limit.before, env=FREED) as p:
                limit.watch(p.process.pid)
                name = p.name
                p.run(ITERATIONS)
        except Ended:
            name = make.rpartition(":")[2]
            limit.read()
            if not limit.killed:
                raise
    return Used(name, limit.most, limit.killed)


@cache
def own(make: str) -> int:
    """Bytes of the runtime, its compiler, and next to no data."""
    return used(make, SMALL).nbytes


def fit(mine: str, quick: bool) -> list[Row]:
    """Ours and peers with all the memory they want, then ours within the budget, enforced."""
    agreed((mine, *PEERS), SMALL)
    agreed((mine, PEERS[0]), replace(SMALL, swap="disk"))
    rows: list[Row] = []
    for side in QUICK_SIDES if quick else SIDES:
        work = Work(side=side)
        free = used(mine, work).nbytes - own(mine)
        held = used(mine, replace(work, memory=PROGRAM), own(mine) + BUDGET)
        if held.killed:
            rows.append(without(f"{work} in {BUDGET / MB:.0f} MB", "peak_mb", held.name, "failed"))
            continue
        net = held.nbytes - own(mine)
        for make in PEERS:
            them = used(make, work)
            theirs = them.nbytes - own(make)
            ended = used(make, work, own(make) + BUDGET).killed
            end = "killed" if ended else "fits"
            case = f"{work} in {BUDGET / MB:.0f} MB, {end}"
            progress(f"{case}: {net / MB:.0f} MB, {them.name} needs {theirs / MB:.0f} MB")
            rows.append(_peak(str(work), free, them.name, theirs, DEFAULT))
            rows.append(_peak(case, net, them.name, theirs, LEAST))
    return rows


def _peak(case: str, ours: int, peer: str, theirs: int, share: float) -> Row:
    """Bytes above the runtime's own; `limit` is the most that ours may be."""
    ratio = theirs / ours
    most = theirs * share / MB
    return Row(case, "peak_mb", ours / MB, peer, theirs / MB, ratio, (ratio, ratio), most, "exact")


def speed(mine: str, quick: bool) -> list[Row]:
    """Budgets that change nothing by process CPU; stores that are moved by wall time as well."""
    rounds = 3 if quick else 6
    rows = timed(mine, FITS, {"budget": replace(FITS, memory=PROGRAM)}, rounds, {"budget": 1.05})
    moved = {tier: replace(MOVED, swap=tier) for tier in SLOWER}
    return rows + timed(mine, MOVED, moved, rounds, SLOWER)


def timed(
    mine: str,
    work: Work,
    others: Mapping[str, Work],
    rounds: int,
    limits: Mapping[str, float],
    iterations: int = 1,
) -> list[Row]:
    """A row per other way, in turns with the usual one, by each clock."""
    with ExitStack() as stack:
        ways = (work, *others.values())
        here = [stack.enter_context(Process(mine, x, 1)) for x in ways]
        for p in here:
            p.run(1)  # compiles
        ms = interleaved(here, [iterations] * len(here), rounds, str(work))
    rows: list[Row] = []
    for k, clock in enumerate(("cpu", "wall")):
        for j, name in enumerate(others, 1):
            case = Case(f"{work}, {name}", clock="cpu" if clock == "cpu" else "wall")
            bound = float(np.median(ms[:, 0, k])) * limits[name]
            row = paired(case, "without", ms[:, j, k], ms[:, 0, k], "exact")
            rows.append(replace(row, limit=bound))
    return rows


def returns(mine: str, quick: bool) -> list[Row]:
    """What returns of a few steps hold and take, beside Monte Carlo: all of them learn alike."""
    base = Work(side=64 if quick else 256, n=Work().T)
    steps = {f"{n} steps": replace(base, n=n) for n in (8, 64)}
    for work in steps.values():
        agreed((mine, *PEERS), replace(SMALL, n=work.n))
    whole = used(mine, base).nbytes - own(mine)
    rows: list[Row] = []
    for work in steps.values():
        peak = used(mine, work).nbytes - own(mine)
        rows.append(_peak(str(work), peak, "Monte Carlo", whole, 1.0))
    swapped = replace(base, swap="disk")
    return rows + timed(mine, swapped, steps, 3 if quick else 6, dict.fromkeys(steps, 1.0))
