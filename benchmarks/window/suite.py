"""The window: its dependency check, its launches, its simulator beside the paper, two cores.

Speed-ups on two cores are printed on an idle machine only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine
from benchmarks.harness import PAIRS, QUICK_PAIRS, Case, Contestant, Row, compare, progress, row_of
from benchmarks.pairs import interleaved, learned, ratio
from benchmarks.window.cores import core_pair_rows
from benchmarks.worker import in_worker
from recurra.errors import RecurraError
from recurra.window import Executor, Task, copy, fill, matmul
from recurra.window.list_schedule import gain
from recurra.window.native.native_build import TORCH, build
from recurra.window.native.native_window import load
from recurra.window.paper_comparison import comparison

TABLE_2: Mapping[tuple[int, int], float] = {
    (16, 6): 410.0,
    (16, 10): 700.0,
    (32, 6): 510.0,
    (32, 10): 1640.0,
}  # (slots, segments) → ns
WRITES = {6: 1, 10: 2}  # of that many segments
LAUNCHES = 500
LOOK = 3.0  # seconds
CHAINS, LINKS = 8, 4
WIDTHS = (96, 128, 192, 256)


def suite(quick: bool = False) -> list[Row]:
    """All rows; the native window is compiled first if it is not there."""
    progress("the native window")
    build()
    torch = find_spec("torch") is not None
    rows = check_rows(QUICK_PAIRS if quick else PAIRS)
    rows += [row_of(r) for r in in_worker(launch_rows, {"quick": quick}, threads=2)]
    if torch:
        build(extension=TORCH)
        rows += [row_of(r) for r in in_worker(operator_rows, {"quick": quick}, threads=1)]
    progress("the simulator beside the paper")
    rows += simulated_rows(300 if quick else 900)
    others = machine.busy(LOOK)  # not the load of the last minute: that is ours
    if others >= machine.IDLE_LOAD:
        progress(f"{others:.1f} cores are busy: no speed-up on two cores is taken")
        return rows
    with _one_thread_in_blas():
        rows += [row_of(r) for r in in_worker(core_pair_rows, {"quick": quick}, threads=2)]
        rows += [row_of(r) for r in in_worker(core_rows, {"quick": quick}, threads=2)]
        rows += [row_of(r) for r in in_worker(compiled_rows, {"quick": quick}, threads=2)]
    if torch:
        rows += [row_of(r) for r in in_worker(program_rows, {"quick": quick}, threads=2)]
    return rows


def operator_rows(quick: bool) -> list[dict[str, Any]]:
    """The rows of `pytorch.operator_rows`."""
    from benchmarks.window import pytorch

    return pytorch.operator_rows(quick)


def program_rows(quick: bool) -> list[dict[str, Any]]:
    """The rows of `pytorch.program_rows`."""
    from benchmarks.window import pytorch

    return pytorch.program_rows(quick)


def compiled_rows(quick: bool) -> list[dict[str, Any]]:
    """The rows of `compiled.compiled_rows`."""
    from benchmarks.window import compiled

    torch = find_spec("torch") is not None
    return compiled.compiled_rows(quick, compiled.BACKENDS if torch else ("numpy",))


def check_rows(rounds: int) -> list[Row]:
    """One task against a full window, ns; both ways must find as many upstream tasks."""
    rows: list[Row] = []
    for (slots, segments), paper in TABLE_2.items():
        writes = WRITES[segments]
        clock = load().CheckClock(slots, segments - writes, writes, 500)
        if clock.columns(1)[1] != clock.algorithm1(1)[1]:
            raise RecurraError(f"{slots} slots: the columns and Algorithm 1 do not agree")
        ns = np.array([(clock.columns(20)[0], clock.algorithm1(5)[0]) for _ in range(rounds)])
        middle, ci95 = ratio(ns[:, 0], ns[:, 1])
        us, them = (float(np.median(ns[:, k])) for k in (0, 1))
        case = f"{slots} slots, {segments} segments, {load().lanes}"
        progress(f"{case}: {us:.0f} ns, Algorithm 1 {them:.0f} ns, the paper {paper:.0f} ns")
        rows.append(Row(case, "check_ns", us, "Algorithm 1", them, middle, ci95, None, "exact"))
        way = paper / us
        rows.append(
            Row(case, "check_ns", us, "paper, table II", paper, way, (way, way), None, "none")
        )
    return rows


def launch_rows(quick: bool) -> list[dict[str, Any]]:
    """What a launch costs: kernels that do next to nothing, process CPU."""
    rows = compare(
        Case("a kernel of 64 numbers", "launch_ms", threads=2),
        _launching("native", True),
        [_launching("window in Python", False), _pool(), _direct()],
        pairs=QUICK_PAIRS if quick else PAIRS,
        iterations=LAUNCHES,
    )
    return [asdict(row) for row in rows]


def _launching(name: str, native: bool) -> Contestant:
    arrays = [np.zeros(64) for _ in range(32)]

    def run(count: int) -> None:
        with Executor(2, native=native, policy="always") as window:
            for k in range(count):
                window.launch(fill, k, arrays[k % 32])

    return _after(name, run, arrays)


def _pool() -> Contestant:
    arrays = [np.zeros(64) for _ in range(32)]

    def run(count: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            for done in [pool.submit(fill, k, arrays[k % 32]) for k in range(count)]:
                done.result()

    return _after("ThreadPoolExecutor", run, arrays)


def _direct() -> Contestant:
    arrays = [np.zeros(64) for _ in range(32)]

    def run(count: int) -> None:
        for k in range(count):
            fill(k, arrays[k % 32])

    return _after("calls in order", run, arrays)


def _after(
    name: str, run: Callable[[int], None], arrays: Sequence[NDArray[np.float64]]
) -> Contestant:
    def answer() -> dict[str, NDArray[Any]]:
        run(LAUNCHES)
        return {"arrays": np.stack(arrays)}

    return Contestant(name, run, answer)


def simulated_rows(kernels: int) -> list[Row]:
    """Every figure of the paper that the simulator has, ours over the paper's."""
    return [
        Row(r.what, "figure", r.ours, "paper", r.paper, k := r.ours / r.paper, (k, k), None, "none")
        for r in comparison(kernels=kernels)
    ]


def core_rows(quick: bool) -> list[dict[str, Any]]:
    """Chains of matrix products on two cores against one thread in order; `limit` is what list
    scheduling of the measured products would take."""
    rows: list[Row] = []
    for n in WIDTHS:
        windowed, serial = _products(n, True), _products(n, False)
        once = interleaved([serial.run], iterations=2, rounds=5, clock="wall").min()
        limit = float(once) / gain(*_tasks(once), threads=2, overhead=0.0, slots=32)
        case = Case(
            f"{CHAINS} chains of {LINKS} products {n}", threads=2, clock="wall", limit=limit
        )
        learned(windowed.run, 4)
        rows += compare(
            case, windowed, [serial], pairs=QUICK_PAIRS if quick else PAIRS, iterations=4
        )
    return [asdict(row) for row in rows]


def _tasks(ms: float) -> tuple[list[Task], list[float]]:
    from recurra.window import Segment

    places = [Segment(8 * (k % CHAINS), 8) for k in range(CHAINS * LINKS)]
    tasks = [Task("matmul", (place,), (place,)) for place in places]
    return tasks, [ms / len(tasks)] * len(tasks)


def _products(size: int, windowed: bool) -> Contestant:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((CHAINS, LINKS, size, size), np.float32) / np.float32(size**0.5)
    start = rng.standard_normal((CHAINS, size, size), np.float32)
    h = np.empty((CHAINS, LINKS + 1, size, size), np.float32)

    def once(call: Callable[..., Any]) -> None:
        for chain in range(CHAINS):
            call(copy, start[chain], h[chain, 0])
        for link in range(LINKS):
            for chain in range(CHAINS):
                call(matmul, h[chain, link], weights[chain, link], h[chain, link + 1])

    executor = Executor(2) if windowed else None

    def run(count: int) -> None:
        for _ in range(count):
            if executor is None:
                once(lambda kernel, *arrays: kernel(*arrays))
            else:
                once(executor.launch)
                executor.drain()

    def answer() -> dict[str, NDArray[Any]]:
        run(1)
        return {"h": h[:, -1].copy()}

    return Contestant("window" if windowed else "one thread in order", run, answer)


@contextmanager
def _one_thread_in_blas() -> Generator[None]:
    """For processes that are started inside."""
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before
