"""What two cores do at once over what one does: no schedule of two threads can gain more.

Two processes, each on a core of its own, that share nothing. Where the ratio is near 1 the cores
are two hardware threads of one, or share what the work needs.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import PAIRS, QUICK_PAIRS, Row, progress
from benchmarks.pairs import ratio

SECONDS = 0.05  # of one measurement
ENOUGH = 1 << 22  # numbers: 16 MB an array, more than a cache has


def products() -> Callable[[], object]:
    """Busy units of arithmetic, hardly any memory."""
    rng = np.random.default_rng(0)
    a, b, out = (rng.standard_normal((256, 256), np.float32) for _ in range(3))
    return lambda: np.matmul(a, b, out=out)


def additions() -> Callable[[], object]:
    """Hardly any arithmetic, all from memory."""
    a, b, out = (np.ones(ENOUGH, np.float32) for _ in range(3))
    return lambda: np.add(a, b, out=out)


def counting() -> Callable[[], object]:
    """One instruction after the other, as a program's own Python is."""

    def count() -> int:
        total = 0
        for k in range(20_000):
            total += k & 7
        return total

    return count


WORKS: Mapping[str, Callable[[], Callable[[], object]]] = {
    "products of 256": products,
    "additions in memory": additions,
    "counting in Python": counting,
}


def core_pair_rows(quick: bool) -> list[dict[str, Any]]:
    """A row per kind of work: how much two cores do at once over the mean of each alone."""
    cores = sorted(os.sched_getaffinity(0))[-2:]
    rows: list[Row] = []
    for name in WORKS:
        times = together_over_alone(name, cores, QUICK_PAIRS if quick else PAIRS)
        middle, ci95 = ratio(np.ones_like(times), times)
        progress(f"two cores at once do {middle:.2f} times what one does: {name}")
        case = f"two cores at once / one, {name}"
        rows.append(Row(case, "times", middle, "one core", 1.0, middle, ci95, 2.0, "none"))
    return [asdict(row) for row in rows]


def together_over_alone(work: str, cores: list[int], rounds: int) -> NDArray[np.float64]:
    """[rounds]; 2 where the cores do not disturb each other."""
    spawn = multiprocessing.get_context("spawn")
    ours: list[Connection] = []
    processes: list[Any] = []
    for core in cores:
        near, far = spawn.Pipe()
        processes.append(spawn.Process(target=_serve, args=(work, core, far), daemon=True))
        processes[-1].start()
        ours.append(near)
    found = np.empty(rounds)
    for k in range(rounds):
        alone = [_rates([pipe])[0] for pipe in ours]
        found[k] = sum(_rates(ours)) / (sum(alone) / len(alone))
    for pipe, process in zip(ours, processes, strict=True):
        pipe.send(0.0)
        process.join()
    return found


def _rates(pipes: list[Connection]) -> list[float]:
    """Of those processes, at the same time."""
    for pipe in pipes:
        pipe.send(SECONDS)
    return [pipe.recv() for pipe in pipes]


def _serve(work: str, core: int, pipe: Connection) -> None:
    """Another process: so often a second, whenever it is asked, until it is asked for no time."""
    os.sched_setaffinity(0, {core})
    once = WORKS[work]()
    once()
    while seconds := pipe.recv():
        pipe.send(rate(once, seconds, time.perf_counter))


def rate(once: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """Calls per second, for so long."""
    begin, count = clock(), 0
    while (now := clock()) - begin < seconds:
        once()
        count += 1
    return count / (now - begin)
