"""`recurra bench ppo`: our PPO beside hand-written programs, published schemes and real peers.

Each contestant lives in a process of its own. Its first iteration is compared with ours before any
time is taken; then all take turns. One core by process CPU, two cores by wall time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recurra.bench import machine
from recurra.bench.harness import (
    PAIRS,
    Case,
    Checked,
    Contestant,
    Disagreement,
    Row,
    check,
    paired,
    progress,
)
from recurra.bench.ppo import limit
from recurra.bench.ppo.installed import Peer, installed
from recurra.bench.ppo.process import Ended, Process, interleaved
from recurra.bench.ppo.work import Work
from recurra.bench.worker import in_worker, name_of
from recurra.errors import RecurraError

HERE = "recurra.bench.ppo"
BEST = Peer(f"{HERE}.programs:batch_last_kept")
FAIR = Peer(f"{HERE}.schemes_jax:purejaxrl_unshuffled")  # the bar to beat
SHARDED = Peer(f"{HERE}.shards:sharded_on_host")
REGIONS = (
    BEST,
    Peer(f"{HERE}.programs:batch_last"),
    Peer(f"{HERE}.programs:batch_first_kept"),
    Peer(f"{HERE}.programs:batch_first"),
    Peer(f"{HERE}.programs:python_loop"),
)
SCHEMES = (
    Peer(f"{HERE}.schemes_torch:cleanrl"),
    Peer(f"{HERE}.schemes_torch:cleanrl_cached"),
    Peer(f"{HERE}.schemes_jax:purejaxrl"),
    FAIR,
)
DEFAULT = Work()
GRID = (
    Work(T=125),
    Work(T=500),
    Work(width=32),
    Work(width=256),
    Work(depth=4),
    Work(B=128),
    Work(B=1024),
)
QUICK_GRID = (GRID[0], GRID[2], GRID[5])
# f32 sums of T·B terms: a gradient over all rows at once differs by 1e-5 from one in tiles.
TOLERANCE = 1e-4
DOUBLING = 2.2  # the budget of time when T or B doubles


@dataclass(frozen=True)
class Protocol:
    """How much is measured."""

    pairs: int
    iterations: int  # in each measured stretch


FULL, QUICK, HEAVY = Protocol(PAIRS, 4), Protocol(4, 2), Protocol(PAIRS, 2)


@dataclass(frozen=True)
class Contest:
    """One case: its rows, and the milliseconds [pairs] of ours and of every peer by name."""

    work: Work
    rows: list[Row]
    ours: NDArray[np.float64]
    theirs: Mapping[str, NDArray[np.float64]]


def suite(
    ours: Callable[[Work], Contestant], quick: bool = False, peers: Path | None = None
) -> list[Row]:
    """All rows; `ours(work)` is called, by its name, in other processes.

    `peers` is a folder of virtual environments with real peers, see `installed`.
    """
    mine = Peer(name_of(ours))
    real = installed(peers) if peers else []
    rates = limit.Rates(**in_worker(limit.measure, {}, threads=1))
    protocol, some = (QUICK, [BEST, FAIR]) if quick else (FULL, [*REGIONS, *SCHEMES])
    every = [*REGIONS, *SCHEMES, *real]
    one = contest(mine, every, case_of(DEFAULT, 1, rates), DEFAULT, protocol)
    rows = [*one.rows, *memory(mine, some + ([] if quick else real), DEFAULT)]
    two = [SHARDED, *(some if quick else [*REGIONS, *SCHEMES, *real])]
    rows += contest(mine, two, case_of(DEFAULT, 2, rates), DEFAULT, protocol).rows
    grid = [one]
    for work in QUICK_GRID if quick else GRID:
        case = case_of(work, 1, rates)
        heavy = replace(HEAVY, pairs=protocol.pairs)
        grid.append(contest(mine, some, case, work, heavy))
        rows += grid[-1].rows
    rows += [together(grid, name) for name in grid[-1].theirs]
    return [*rows, per_doubling(grid, "T"), per_doubling(grid, "B")]


def case_of(work: Work, threads: int, rates: limit.Rates) -> Case:
    """One core by process CPU, more by wall time; a busy machine is told in the latter."""
    load = machine.load()
    busy = f", load {load:.1f}" if threads > 1 and load >= machine.IDLE_LOAD else ""
    bound = limit.limit_ms(work, rates, threads)
    clock = "cpu" if threads == 1 else "wall"
    return Case(f"{work}{busy}", threads=threads, clock=clock, limit=bound)


def contest(
    mine: Peer, peers: Sequence[Peer], case: Case, work: Work, protocol: Protocol
) -> Contest:
    """Check all, then time all in turns; a real peer that cannot run is told and left out."""
    with ExitStack() as stack:
        ours = stack.enter_context(mine.started(work, case.threads))
        us = ours.contestant()
        here: list[Process] = [ours]
        checked: list[Checked] = []
        for peer in peers:
            try:
                process = stack.enter_context(peer.started(work, case.threads))
                them = process.contestant()
                how = check((us, us.answer()), (them, them.answer()), TOLERANCE)
            except (Ended, Disagreement) as error:
                _left_out(peer, case, error)
                continue
            here.append(process)
            checked.append(how)
            progress(f"{case}: {them.name}: checked {how}")
        progress(f"{case}: timing {len(here)} programs, {protocol.pairs} rounds")
        ms = interleaved(here, protocol.iterations, protocol.pairs)
        ms = ms[..., 0 if case.clock == "cpu" else 1]
        names = [process.name for process in here[1:]]
    rows = [
        paired(case, name, ms[:, 0], theirs, how)
        for name, theirs, how in zip(names, ms[:, 1:].T, checked, strict=True)
    ]
    return Contest(work, rows, ms[:, 0], dict(zip(names, ms[:, 1:].T, strict=True)))


def _left_out(peer: Peer, case: Case, error: RecurraError) -> None:
    """Tell why a real peer has no row; what is written here has to run and to agree."""
    if not peer.real:
        raise error
    progress(f"{case}: no row of {peer.make}: {error}")


def memory(mine: Peer, peers: Sequence[Peer], work: Work) -> list[Row]:
    """The most memory of a few iterations, less that of the same program on next to nothing."""
    tiny = replace(work, B=2, T=2)

    def net(peer: Peer) -> tuple[str, float] | None:
        found: list[float] = []
        name = ""
        for sizes in (work, tiny):
            try:
                with peer.started(sizes, 1) as process:
                    process.run(4)
                    name, peak = process.name, process.peak_mb()
            except Ended as error:
                _left_out(peer, Case(f"{sizes}, memory"), error)
                return None
            found.append(peak)
        return name, found[0] - found[1]

    measured = net(mine)
    assert measured is not None, "ours is not a real peer: it would have raised"
    ours = measured[1]
    rows: list[Row] = []
    for peer in peers:
        found = net(peer)
        if found is not None:
            ratio = found[1] / ours
            row = Row(f"{work}, above the runtime's own", "peak_rss_mb", ours, found[0], found[1],
                      ratio, (ratio, ratio), None, "none")  # fmt: skip
            progress(f"{row.case}: {ours:.0f} MB, {row.peer} {row.theirs:.0f} MB")
            rows.append(row)
    return rows


def together(
    contests: Sequence[Contest], name: str, *, resamples: int = 2000, seed: int = 0
) -> Row:
    """The geometric mean of the ratios of all cases, each the median of its pairs."""
    pairs = [(c.ours, c.theirs[name]) for c in contests if name in c.theirs]
    ratios = [theirs / ours for ours, theirs in pairs]
    rng = np.random.default_rng(seed)
    drawn = [np.median(rng.choice(r, (resamples, len(r))), axis=1) for r in ratios]
    low, high = np.quantile(np.exp(np.mean(np.log(drawn), axis=0)), (0.025, 0.975))
    means = [_geometric([np.median(x) for x in column]) for column in zip(*pairs, strict=True)]
    middle = _geometric([np.median(r) for r in ratios])
    case = str(Case(f"geometric mean of {len(pairs)} cases"))
    return Row(case, "iteration_ms", means[0], name, means[1], middle, (float(low), float(high)),
               None, "none")  # fmt: skip


def _geometric(values: Sequence[Any]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def per_doubling(contests: Sequence[Contest], size: str) -> Row:
    """How many times as long an iteration takes when a size doubles: a line through logarithms."""
    others = [k for k in ("T", "B", "width", "depth") if k != size]
    of = [c for c in contests if all(getattr(c.work, k) == getattr(DEFAULT, k) for k in others)]
    sizes = np.log2([getattr(c.work, size) for c in of])
    slope = np.polyfit(sizes, np.log2([np.median(c.ours) for c in of]), 1)[0]
    ours = float(2**slope)
    ratio = DOUBLING / ours
    where = ", ".join(str(getattr(c.work, size)) for c in sorted(of, key=_size(size)))
    return Row(f"{size} in {where} 1T", "times_per_doubling", ours, "budget", DOUBLING, ratio,
               (ratio, ratio), None, "none")  # fmt: skip


def _size(name: str) -> Callable[[Contest], Any]:
    return lambda c: getattr(c.work, name)
