"""Teams: threads that share the trips of a nest's outermost loop.

Each thread runs the code of a smaller problem, the outermost index restricted to its share of the
points, on pointers to the beginning of its share. No two threads write to the same element.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache

from recurra.nest.loops import Nest, restricted, scheduled
from recurra.nest.problem import ITEM_BYTES


@dataclass(frozen=True)
class ThreadPart:
    """The share of one thread: a nest over fewer points, which begin at `start`."""

    nest: Nest
    start: int


def parts(nest: Nest, threads: int) -> list[ThreadPart]:
    """Return the shares of at most so many threads, as even as whole trips allow."""
    index, step = nest.steps[0]
    extent = nest.problem.extents[index]
    trips = -(-extent // step)
    each = -(-trips // threads) * step
    starts = range(0, extent, each)
    return [ThreadPart(restricted(nest, {index: min(each, extent - s)}), s) for s in starts]


def parallelize(nest: Nest, threads: int) -> Nest | None:
    """Return the nest with its outermost loop shared by threads, with one more loop where needed.

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
    """A parallel nest, loaded: `call` takes the addresses of its tensors, inputs first.

    `load` returns the function of a nest that is not parallel.
    """

    address = None  # no single native function runs it

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
        """Run all shares, the first in this thread, and return when they are done."""
        (first, _), *others = self.work
        running = [
            _pool(len(others)).submit(call, *(a + o for a, o in zip(addresses, moved, strict=True)))
            for call, moved in others
        ]
        try:
            first(*addresses)
        finally:
            _wait_for(running)


def _wait_for(running: Sequence[Future[None]]) -> None:
    """Wait until all have ended, also after Ctrl-C, since they use the caller's arrays.

    Raises the exception of the first that failed.
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


if hasattr(os, "register_at_fork"):  # a child inherits pools without their threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
