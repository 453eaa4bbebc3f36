"""Peak memory of each program, in its own process, less that of the same one on next to nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.harness import Row, progress
from benchmarks.ppo.contest import LAUNCH, left_out
from benchmarks.ppo.installed import Peer
from benchmarks.ppo.workload import Work
from benchmarks.process import Ended
from recurra.report.progress import track

METRIC = "peak_rss_mb"
Peaks = Mapping[Peer, tuple[str, float]]


def memory(mine: Peer, peers: Sequence[Peer], work: Work, known: Peaks) -> list[Row]:
    """One row per peer, 10⁶ bytes; `known` are peaks of that work that were taken before."""
    tiny = replace(work, B=2, T=2)
    net: dict[Peer, tuple[str, float]] = {}
    rows: list[Row] = []
    case = f"{work}, above the runtime's own"
    with track(1 + len(peers), "memory") as bar:
        for k, peer in enumerate((mine, *peers)):
            try:
                name, whole = known.get(peer) or peak(peer, work)
                net[peer] = name, whole - peak(peer, tiny)[1]
            except Ended as error:
                if peer is mine:
                    raise
                rows += left_out(peer, case, METRIC, error)
            bar.update(k + 1)
    ours = net.pop(mine)[1]
    for name, theirs in net.values():
        ratio = theirs / ours
        progress(f"{case}: {ours:.0f} MB, {name} {theirs:.0f} MB")
        rows.append(Row(case, METRIC, ours, name, theirs, ratio, (ratio, ratio), None, "none"))
    return rows


def peak(peer: Peer, work: Work) -> tuple[str, float]:
    """Its name, and the most memory that it holds until some iterations are done."""
    with peer.started(work, 1) as process:
        process.run(LAUNCH)
        return process.name, process.peak_mb()
