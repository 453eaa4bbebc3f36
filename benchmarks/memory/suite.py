"""`recurra bench memory`: large observations, within a budget that the system enforces.

Parts, in this order; `--only` takes some of them:

    fit      PPO on larger and larger pictures: who ends within the budget, and what it takes
    shuffled PPO in epochs of shuffled minibatches, its pictures in memory, on the host, on a disk
    speed    what a budget that is no matter costs, and stores on the host or a disk
    returns  REINFORCE with returns of 8 and 64 steps, and Monte Carlo, on the largest pictures

Answers are compared at a small size first. Memory and speed are measured in processes of their
own; for memory the C library gives back what is freed (MALLOC_MMAP_THRESHOLD_), and code is found
that a run before has left, because a compiler's memory is of another size than the data's. What the
runtime takes by itself, the same program on next to nothing, is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.harness import Case, Contestant, Row, check, paired, progress, without
from benchmarks.memory import lanes
from benchmarks.memory.memory_limit import limited
from benchmarks.memory.recurra_program import contestant
from benchmarks.memory.workload import Work
from benchmarks.pairs import CLOCKS
from benchmarks.parts import named
from benchmarks.process import Ended, Process, interleaved
from benchmarks.worker import name_of
from recurra.support.cpu import cores

HERE = "benchmarks.memory"
PEERS = (f"{HERE}.published_schemes_jax:purejaxrl", f"{HERE}.published_schemes_torch:cleanrl")
PARTS = ("fit", "shuffled", "speed", "returns")
MB = 10**6
BUDGET = 104 * MB  # above the runtime's own
PROGRAM = "72MiB"  # of arrays; the rest is for code that grows with it, and what is read ahead
TIGHT = {64: ("6MiB", 28 * MB), 128: ("32MiB", 52 * MB)}  # by side: where that is no restriction
SHUFFLED = 130 * MB  # two samples, 50 of them, and the code of twice as many launches
SIDES, QUICK_SIDES = (64, 128, 256), (64,)
SMALL = Work(side=16, B=2, T=4)
FITS = Work(side=64, T=64)  # needs no help within PROGRAM
MOVED = Work(side=128, T=128)
EPOCHS: Mapping[str, Any] = {"epochs": 4, "minibatches": 4}
FREED = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}
EVERYTHING = {  # is kept by JAX
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
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
    quick: bool = False,
    only: str | None = None,
    out: Path | None = None,
    ours: Callable[[Work], Contestant] = contestant,
) -> list[Row]:
    """All rows; `ours(work)` is called, by its name, in other processes. `out`: of pictures."""
    mine, parts = name_of(ours), named("memory", PARTS, only)
    rows: list[Row] = []
    if "fit" in parts:
        rows += fit(mine, quick)
    if "shuffled" in parts:
        rows += shuffled(mine, quick)
    if "speed" in parts:
        rows += speed(mine, quick)
    if "returns" in parts:
        rows += returns(mine, quick)
        if out is not None:
            lanes.write(out, ways(64 if quick else 128), min(2, cores()))
    return rows


def ways(side: int) -> dict[str, Work]:
    """REINFORCE with returns of all that follows, and of a few steps."""
    whole = Work(side=side, n=Work().T)
    return {
        "Monte Carlo": whole,
        "Monte Carlo, on a disk": replace(whole, offload="disk"),
        **{f"{n} steps": replace(whole, n=n) for n in (64, 8)},
    }


def agreed(makes: tuple[str, ...], *works: Work) -> None:
    """Raises Disagreement where programs do not compute the same, or one of them of all works."""
    found: list[tuple[Contestant, Mapping[str, np.ndarray]]] = []
    for make, work in product(makes, works):
        with Process(make, work, 1) as p:
            them = p.contestant()
        found.append((them, them.answer()))
        progress(f"{work}: {them.name}: checked {check(found[0], found[-1])}")


@cache
def code() -> TemporaryDirectory[str]:
    """Where compiled programs are kept, those of peers as well, while the bench runs."""
    return TemporaryDirectory(prefix="recurra-bench-")


@cache
def compiled(make: str, work: Work) -> Mapping[str, str]:
    """How a process finds the code of some iterations, which have been run."""
    folder = code().name
    env = {**FREED, **EVERYTHING, "RECURRA_CACHE": folder, "JAX_COMPILATION_CACHE_DIR": folder}
    with Process(make, work, 1, env=env) as p:
        p.run(ITERATIONS)
    return env


def used(make: str, work: Work, nbytes: int = 0) -> Used:
    """Some iterations of compiled code, under a limit of so many bytes, if any."""
    env = compiled(make, work)
    with limited(nbytes) as limit:
        try:
            with Process(make, work, 1, before=limit.before, env=env) as p:
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
def own(make: str, work: Work = SMALL) -> int:
    """Bytes of the runtime, the program's code, and next to no data."""
    return used(make, work).nbytes


def fit(mine: str, quick: bool) -> list[Row]:
    """Ours and peers with all the memory they want, then ours within the budget, enforced."""
    agreed((mine, *PEERS), SMALL)
    agreed((mine, PEERS[0]), replace(SMALL, offload="disk"))
    rows: list[Row] = []
    for side in QUICK_SIDES if quick else SIDES:
        work = Work(side=side)
        free = used(mine, work).nbytes - own(mine)
        program, room = TIGHT.get(side, (PROGRAM, BUDGET))
        held = used(mine, replace(work, memory=program), own(mine) + room)
        case = f"{work} in {room / MB:.0f} MB"
        if held.killed:
            rows.append(without(case, "peak_mb", held.name, "failed"))
            continue
        net = held.nbytes - own(mine)
        for make in PEERS:
            them = used(make, work)
            theirs = them.nbytes - own(make)
            ended = used(make, work, own(make) + BUDGET).killed
            peer = f"{them.name}, {'killed' if ended else 'ends'} in {BUDGET / MB:.0f} MB"
            progress(f"{case}: {net / MB:.0f} MB, {peer}, needs {theirs / MB:.0f} MB")
            rows.append(_peak(str(work), free, them.name, theirs, DEFAULT))
            rows.append(_peak(case, net, peer, theirs, LEAST))
    return rows


def shuffled(mine: str, quick: bool) -> list[Row]:
    """What samples hold that the host takes from elsewhere, and what that takes."""
    small = replace(SMALL, **EPOCHS)
    agreed((mine,), small, replace(small, offload="disk"))
    work, base = Work(side=64 if quick else 128, **EPOCHS), own(mine, small)
    kept = used(mine, work).nbytes - base
    disk = used(mine, replace(work, offload="disk"), base + SHUFFLED)
    ended = "killed" if used(mine, work, base + SHUFFLED).killed else "ends"
    case = f"{work} on a disk, in {SHUFFLED / MB:.0f} MB"
    if disk.killed:
        return [without(case, "peak_mb", disk.name, "failed")]
    rows = [_peak(case, disk.nbytes - base, f"kept, {ended} in that", kept, 1.0)]
    moved = {tier: replace(work, offload=tier) for tier in SLOWER}
    return rows + timed(mine, "without", work, moved, 3 if quick else 6, SLOWER)


def _peak(case: str, ours: int, peer: str, theirs: int, share: float) -> Row:
    """Bytes above the runtime's own; `limit` is the most that ours may be."""
    ratio = theirs / ours
    most = theirs * share / MB
    return Row(case, "peak_mb", ours / MB, peer, theirs / MB, ratio, (ratio, ratio), most, "exact")


def speed(mine: str, quick: bool) -> list[Row]:
    """Budgets that change nothing by process CPU; stores that are moved by wall time as well."""
    rounds = 3 if quick else 6
    rows = timed(
        mine, "without", FITS, {"budget": replace(FITS, memory=PROGRAM)}, rounds, {"budget": 1.05}
    )
    moved = {tier: replace(MOVED, offload=tier) for tier in SLOWER}
    return rows + timed(mine, "without", MOVED, moved, rounds, SLOWER)


def timed(
    mine: str,
    usual: str,
    work: Work,
    others: Mapping[str, Work],
    rounds: int,
    limits: Mapping[str, float],
    threads: int = 1,
) -> list[Row]:
    """A row per other way, in turns with the usual one, by each clock."""
    with ExitStack() as stack:
        ways = (work, *others.values())
        here = [stack.enter_context(Process(mine, x, threads)) for x in ways]
        for p in here:
            p.run(1)  # compiles
        ms = interleaved(here, [1] * len(here), rounds, str(work))
    rows: list[Row] = []
    for k, clock in enumerate(CLOCKS):
        for j, name in enumerate(others, 1):
            case = Case(f"{work}, {name}", threads=threads, clock=clock)
            bound = float(np.median(ms[:, 0, k])) * limits[name]
            row = paired(case, usual, ms[:, j, k], ms[:, 0, k], "exact")
            rows.append(replace(row, limit=bound))
    return rows


def returns(mine: str, quick: bool) -> list[Row]:
    """What returns of a few steps hold and take, beside Monte Carlo: all of them learn alike."""
    every = ways(64 if quick else 256)
    usual = {k: w for k, w in every.items() if w.n == w.T}
    steps = {k: w for k, w in every.items() if w.n != w.T}
    for work in steps.values():
        agreed((mine, *PEERS), replace(SMALL, n=min(work.n, SMALL.T - 1)))
    whole = used(mine, every["Monte Carlo"]).nbytes - own(mine)
    rows: list[Row] = []
    for work in steps.values():
        peak = used(mine, work).nbytes - own(mine)
        rows.append(_peak(str(work), peak, "Monte Carlo", whole, 1.0))
    for name, work in usual.items():
        limits = dict.fromkeys(steps, 1.0)
        rows += timed(mine, name, work, steps, 3 if quick else 6, limits, min(2, cores()))
    return rows
