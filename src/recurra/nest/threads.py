"""Teams: threads that share the trips of a nest's outermost loop.

Each thread runs the code of a smaller problem, the outermost index cut to its share of the points,
on pointers that are moved to where its share begins. No two of them write to the same element.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from recurra.nest.loops import Nest, restricted, scheduled
from recurra.nest.problem import ITEM_BYTES


@dataclass(frozen=True)
class ThreadPart:
    """The part of one thread: a nest over fewer points, `start` of them further."""

    nest: Nest
    start: int


def available() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parts(nest: Nest, threads: int) -> list[ThreadPart]:
    """The shares of at most so many threads, as even as whole trips allow."""
    index, step = nest.steps[0]
    extent = nest.problem.extents[index]
    trips = -(-extent // step)
    each = -(-trips // threads) * step
    starts = range(0, extent, each)
    return [ThreadPart(restricted(nest, {index: min(each, extent - s)}), s) for s in starts]


def shared(nest: Nest, threads: int) -> Nest | None:
    """The nest with its outermost loop shared by two threads or more; with a loop more, where it
    has too few trips.

    None where no index of the output has two trips to share.
    """
    p, first = nest.problem, nest.compute[0]
    if nest.parallel:
        return nest
    if first.index in p.output.indices and first.size >= threads:
        return replace(nest, parallel=True)
    steps = dict(reversed(nest.steps))  # of the outermost loop over each index
    found = [(p.extents[i], i) for i in steps if i in p.output.indices]
    for extent, index in sorted(found, reverse=True):
        trips = -(-extent // steps[index])
        if trips > 1:
            step = steps[index] * -(-trips // min(threads, trips))
            return scheduled(p, f"parallel {index}/{step} {nest.order}")
    return None


class Team:
    """A parallel nest, loaded: called with the addresses of its tensors, inputs first.

    `load` gives the function of a nest that is not parallel.
    """

    address = None  # there is no function of the pointers alone

    def __init__(
        self, nest: Nest, threads: int, load: Callable[[Nest], Callable[..., None]]
    ) -> None:
        self.parts = parts(nest, threads)
        calls = {part.nest: load(part.nest) for part in self.parts}
        index = nest.compute[0].index
        tensors = (*nest.problem.inputs, nest.problem.output)
        steps = [t.steps.get(index, 0) * ITEM_BYTES[t.dtype] for t in tensors]
        self.work = [(calls[x.nest], [s * x.start for s in steps]) for x in self.parts]

    def call(self, *addresses: int) -> None:
        """Returns when all threads have done their share; this one does the first."""
        (first, _), *others = self.work
        running = [
            _pool(len(others)).submit(call, *(a + o for a, o in zip(addresses, moved, strict=True)))
            for call, moved in others
        ]
        try:
            first(*addresses)
        finally:
            _wait_for(running)

    def times(self, addresses: Sequence[int], runs: int) -> NDArray[np.float64]:
        """Seconds of wall clock of each of `runs` runs."""
        found = np.empty(runs)
        for k in range(runs):
            start = time.perf_counter_ns()
            self.call(*addresses)
            found[k] = (time.perf_counter_ns() - start) * 1e-9
        return found


def _wait_for(running: Sequence[Future[None]]) -> None:
    """Return when all have ended: until then, also after Ctrl-C, arrays must not be freed.

    Raises what the first of them has raised.
    """
    interrupted: KeyboardInterrupt | None = None
    while not all(future.done() for future in running):
        try:
            wait(running)
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
    for future in running:
        future.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "recurra-nest")


if hasattr(os, "register_at_fork"):  # a child has the pools of its parent, and none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
