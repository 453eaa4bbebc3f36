"""One case: contestants in processes of their own, answers compared with ours, then times in turns.

A stretch of time is at least an iteration, and about a third of a second where more fit into that;
how many stretches there are, `rounds_of` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine
from benchmarks.harness import (
    PAIRS,
    Case,
    Checked,
    Disagreement,
    Row,
    check,
    paired,
    progress,
    without,
)
from benchmarks.ppo import roofline
from benchmarks.ppo.installed import Peer
from benchmarks.ppo.workload import Work
from benchmarks.process import Ended, Process, interleaved
from recurra.errors import RecurraError

# f32 sums of T·B terms: a gradient over all rows at once differs by 1e-5 from one in tiles. Of as
# many draws one may lie on a border between two actions, and probabilities are rounded in several
# ways: one other action makes a gradient of 128,000 samples another by 6e-4.
TOLERANCE = 2e-3
STRETCH, MOST = 0.35, 8  # seconds, iterations
LAUNCH = 2  # iterations of ours in one launch: all its stretches are multiples
QUICK_ROUNDS, FEWEST, HEAVY = 4, 8, 2.5  # HEAVY: times the arithmetic of the default


@dataclass(frozen=True)
class Contest:
    """One case: its rows, the milliseconds [pairs] of ours and of every peer by name, peaks in MB.

    There are no rows where no time was taken.
    """

    work: Work
    rows: list[Row] = field(default_factory=list[Row])
    ours: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    theirs: Mapping[str, NDArray[np.float64]] = field(
        default_factory=dict[str, NDArray[np.float64]]
    )
    peaks: Mapping[Peer, tuple[str, float]] = field(default_factory=dict[Peer, tuple[str, float]])


def rounds_of(work: Work, quick: bool) -> int:
    """Pairs of one case: 20, fewer where an iteration is many times that of the default sizes."""
    times = work.flops(keep=True) / Work().flops(keep=True)
    rounds = max(FEWEST, round(PAIRS * min(1.0, HEAVY / times)))
    return min(rounds, QUICK_ROUNDS) if quick else rounds


def case_of(work: Work, threads: int, rates: roofline.Rates) -> Case:
    """One core by process CPU, more by wall time."""
    bound = roofline.limit_ms(work, rates, threads)
    clock = "cpu" if threads == 1 else "wall"
    return Case(str(work), threads=threads, clock=clock, limit=bound)


def contest(mine: Peer, peers: Sequence[Peer], case: Case, work: Work, rounds: int) -> Contest:
    """Check all, then time all in turns.

    A real peer that cannot run is told and left out; one that is written here has a row which says
    that it failed, or differs. Ours has to run: else Ended is raised.

    Wall times are refused on a machine that is busy with something else.
    """
    if case.clock == "wall" and refused(case):
        return Contest(work)
    with ExitStack() as stack:
        here: list[tuple[Peer, Process, Checked]] = []
        counts: list[int] = []
        peaks: dict[Peer, tuple[str, float]] = {}
        rows: list[Row] = []
        us = None
        for peer in (mine, *peers):
            try:
                process = stack.enter_context(peer.started(work, case.threads))
                process.run(LAUNCH)  # compiles
                peaks[peer] = process.name, process.peak_mb()
                them = process.contestant()
                us = us or them
                how = check((us, us.answer()), (them, them.answer()), TOLERANCE)
                counts.append(stretch(process, 1 if here else LAUNCH))
            except (Ended, Disagreement) as error:
                if us is None:
                    raise
                rows += left_out(peer, str(case), case.metric, error)
                continue
            here.append((peer, process, how))
            progress(f"{case}: {them.name}: checked {how}")
        ms = interleaved([process for _, process, _ in here], counts, rounds, str(case))
    if case.clock == "wall" and refused(case):
        return Contest(work, rows, peaks=peaks)
    taken: list[tuple[str, Checked, NDArray[np.float64]]] = []
    every = ms[..., 0 if case.clock == "cpu" else 1].T
    for (peer, process, how), times in zip(here, every, strict=True):
        if np.isnan(times).any():
            error = Ended(f"{process.name} has ended while it was timed")
            if peer is mine:
                raise error
            rows += left_out(peer, str(case), case.metric, error)
        else:
            taken.append((process.name, how, times))
    (_, _, ours), *others = taken
    rows += [paired(case, name, ours, times, how) for name, how, times in others]
    return Contest(work, rows, ours, {name: times for name, _, times in others}, peaks)


def refused(case: Case) -> bool:
    """Is the machine busy with something else than us, all of whose processes wait?"""
    busy = machine.busy()
    if busy >= machine.IDLE_LOAD:
        progress(
            f"{case}: no rows: {busy:.1f} cores are busy with other things: wall times would lie"
        )
    return busy >= machine.IDLE_LOAD


def stretch(process: Process, fewest: int) -> int:
    """Iterations that fill a stretch of time."""
    seconds = process.run(fewest)[1] / fewest
    count = fewest
    while 2 * count <= MOST and 2 * count * seconds <= STRETCH:
        count *= 2
    return count


def left_out(peer: Peer, case: str, metric: str, error: RecurraError) -> list[Row]:
    """Tell why a peer has no time; what is written here has to run and to agree: a row says so."""
    progress(f"{case}: no time of {peer.make}: {error}")
    why = "differs" if isinstance(error, Disagreement) else "failed"
    return [] if peer.real else [without(case, metric, peer.make.partition(":")[2], why)]
