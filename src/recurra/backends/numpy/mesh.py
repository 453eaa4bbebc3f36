"""Workers as threads of NumPy: the oracle of programs whose rows are split."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import Any

import numpy as np

from recurra.backends.numpy.numpy_backend import NumpyBackend, without_warnings
from recurra.codegen.region import Region
from recurra.codegen.region_function import region_function
from recurra.ir.op import Op
from recurra.ops.collective import JOIN, SHARD
from recurra.storage.storage_plan import StoragePlan


class NumpyMesh(NumpyBackend):
    """NumPy with a thread for each worker; they wait for each other where they join values."""

    def __init__(self, workers: int):
        super().__init__()
        self.workers = workers

    def compile(self, plan: StoragePlan, region: Region) -> Callable[..., tuple[Any, ...]]:
        meeting = _Meeting(self.workers)
        run = without_warnings(region_function(plan, region, self.machine, here=meeting.here))

        def of(worker: int, args: Sequence[Any]) -> tuple[Any, ...]:
            meeting.mine.worker = worker
            try:
                return run(*(_part(x, worker) for x in args))
            except BaseException:
                meeting.barrier.abort()  # the others would wait forever
                raise

        def together(*args: Any) -> tuple[Any, ...]:
            meeting.barrier.reset()
            with ThreadPoolExecutor(self.workers) as pool:
                jobs = [pool.submit(of, k, args) for k in range(self.workers)]
                parts = [job.exception() for job in jobs]
                broken = (threading.BrokenBarrierError,)
                for error in sorted(filter(None, parts), key=lambda e: isinstance(e, broken)):
                    raise error
            return tuple(map(self.spread, zip(*(job.result() for job in jobs), strict=True)))

        return together

    def array(self, array: Any) -> Any:
        return self.spread([array] * self.workers)

    adopt = array

    def spread(self, parts: Sequence[Any]) -> Any:
        """Join one array for each worker: [workers, ..]."""
        return np.stack([np.asarray(x) for x in parts])

    def parts(self, array: Any) -> Iterable[Any]:
        return array

    copy = NumpyBackend.numpy


class _Meeting:
    """The point where the workers of a launch join their values."""

    def __init__(self, workers: int):
        self.barrier, self.mine = threading.Barrier(workers), threading.local()
        self.brought: list[Any] = [None] * workers

    def here(self) -> dict[str, Any]:
        return {SHARD: self.mine.worker, JOIN: self.join}

    def join(self, monoid: str, array: Any) -> Any:
        """Reduce a value over all workers, in their order."""
        self.brought[self.mine.worker] = array
        self.barrier.wait()
        y = reduce(partial(Op.registry[monoid]().eval, np), self.brought)
        self.barrier.wait()  # before any worker brings its next value
        return y


def _part(array: Any, worker: int) -> Any:
    """One worker's part of an argument: a time, an array or the results of a host call."""
    if isinstance(array, tuple):
        return tuple(_part(y, worker) for y in array)
    return array[worker, ...] if isinstance(array, np.ndarray) else array
