"""`recurra bench ppo`: our PPO beside hand-written programs, published schemes and real peers.

Parts of the table, in this order; `--only` takes some of them:

    1T      the default sizes on one core by process CPU, beside everything
    2T      the same on two cores by wall time, beside what is written here; on an idle machine only
    grid    one size at a time, on one core; geometric means and slopes over T and over B
    memory  the peak of each program above that of its runtime
    start   from nothing to the first iterations, with and without what RECURRA_CACHE keeps
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from benchmarks.harness import Contestant, Row
from benchmarks.parts import named
from benchmarks.ppo import roofline
from benchmarks.ppo.contest import Contest, case_of, contest, rounds_of
from benchmarks.ppo.installed import Peer, installed
from benchmarks.ppo.memory import Peaks, memory
from benchmarks.ppo.recurra_program import contestant
from benchmarks.ppo.starts import starts
from benchmarks.ppo.table import per_doubling, together
from benchmarks.ppo.workload import Work
from benchmarks.worker import in_worker, name_of

HERE = "benchmarks.ppo"
BEST = Peer(f"{HERE}.programs:batch_last_kept")
LATE = Peer(f"{HERE}.programs:batch_last_late")
FAIR = Peer(f"{HERE}.published_schemes_jax:purejaxrl_unshuffled")  # the bar to beat
CLEANRL = Peer(f"{HERE}.published_schemes_torch:cleanrl")
CACHED = Peer(f"{HERE}.published_schemes_torch:cleanrl_cached")
SHARDED = Peer(f"{HERE}.shards:sharded_late_on_host")
REGIONS = (
    LATE,
    BEST,
    Peer(f"{HERE}.programs:batch_last"),
    Peer(f"{HERE}.programs:batch_first_kept"),
    Peer(f"{HERE}.programs:batch_first"),
    Peer(f"{HERE}.programs:python_loop"),
)
SCHEMES = (CLEANRL, CACHED, Peer(f"{HERE}.published_schemes_jax:purejaxrl"), FAIR)
ON_TWO = (SHARDED, Peer(f"{HERE}.shards:sharded_on_host"), LATE, BEST, *SCHEMES)
ON_GRID = (LATE, BEST, CLEANRL, CACHED, FAIR)
QUICK = (LATE, FAIR)  # of everything but 1T
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
QUICK_GRID = (GRID[0], GRID[5])  # what the slopes over T and B need
PARTS = ("1T", "2T", "grid", "memory", "start")


def suite(
    quick: bool = False,
    peers: Path | None = None,
    only: str | None = None,
    ours: Callable[[Work], Contestant] = contestant,
) -> list[Row]:
    """All rows; `ours(work)` is called, by its name, in other processes.

    `peers` is a folder of virtual environments with real peers, see `installed`; `only` names
    parts, separated by commas.
    """
    parts = named("ppo", PARTS, only)
    mine = Peer(name_of(ours))
    real = installed(peers) if peers else []

    @cache
    def rates() -> roofline.Rates:
        return roofline.Rates(**in_worker(roofline.measure, {}, threads=1))

    def measured(work: Work, among: tuple[Peer, ...], threads: int = 1) -> Contest:
        return contest(mine, among, case_of(work, threads, rates()), work, rounds_of(work, quick))

    rows: list[Row] = []
    peaks: Peaks = {}
    one = None
    if "1T" in parts:
        one = measured(DEFAULT, (*REGIONS, *SCHEMES, *real))
        rows, peaks = [*one.rows], one.peaks
    if "2T" in parts:
        rows += measured(DEFAULT, (SHARDED, *QUICK) if quick else ON_TWO, threads=2).rows
    if "grid" in parts:
        among = QUICK if quick else ON_GRID
        grid = [one or measured(DEFAULT, among)]
        rows += [] if one else grid[0].rows
        for work in QUICK_GRID if quick else GRID:
            grid.append(measured(work, among))
            rows += grid[-1].rows
        rows += [together(grid, name) for name in grid[-1].theirs]
        rows += [per_doubling(grid, "T"), per_doubling(grid, "B")]
    if "memory" in parts:
        among = QUICK if quick else (*REGIONS, *SCHEMES, *real)
        rows += memory(mine, among, DEFAULT, peaks)
    if "start" in parts:
        rows += starts(mine, () if quick else (LATE, FAIR), DEFAULT, quick)
    return rows
