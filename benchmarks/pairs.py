"""Times of several programs, taken in turns so that what disturbs one disturbs all."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Clock = Literal["cpu", "wall"]
CLOCKS: dict[Clock, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


def interleaved(
    runs: Sequence[Callable[[int], Any]], *, iterations: int, rounds: int, clock: Clock = "cpu"
) -> NDArray[np.float64]:
    """Milliseconds per iteration, [rounds, runs]; the order is reversed in every other round."""
    now = CLOCKS[clock]
    for run in runs:
        run(iterations)  # compiles, and touches the pages
    ms = np.empty((rounds, len(runs)))
    with _no_collection():
        for i in range(rounds):
            order = range(len(runs)) if i % 2 == 0 else reversed(range(len(runs)))
            for j in order:
                start = now()
                runs[j](iterations)
                ms[i, j] = (now() - start) * 1e3 / iterations
    return ms


def learned(run: Callable[[int], Any], iterations: int, seconds: float = 3.0) -> None:
    """Runs it that long: what decides by the clock how it runs has decided, for the first time."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        run(iterations)


@contextmanager
def _no_collection() -> Generator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def ratio(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], *, resamples: int = 2000, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """Median of theirs / ours over the pairs, with its 95 % bootstrap interval."""
    ratios = theirs / ours
    drawn = np.random.default_rng(seed).choice(ratios, (resamples, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(np.median(ratios)), (float(low), float(high))
