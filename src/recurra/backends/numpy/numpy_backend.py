"""NumPy: a plan as Python source, statement by statement, as scheduled. The middle oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from recurra.backends.numpy.region import defined, written, written_whole
from recurra.backends.protocol import Reading
from recurra.backends.region_cache import LazyFunction
from recurra.codegen.arena_views import View
from recurra.codegen.array_machine import Starts, Until
from recurra.codegen.region import Region
from recurra.codegen.single_launch import Finish, WholeProgram
from recurra.cost.target import PLAIN
from recurra.ir.statement import Statement
from recurra.storage.arena_offsets import ALIGNMENT
from recurra.storage.storage_plan import StoragePlan


class NumpyMachine:
    """Stores are updated in place; loops are Python loops."""

    xp: Any = np

    def apply(self, node: Statement, env: Mapping[str, Any], *args: Any) -> Any:
        return node.op.run(self.xp, env, *args)

    def loop(self, dim: str, lo: Any, hi: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        for time in range(lo, hi):
            carry = body(time, carry)
        return carry

    def while_loop(
        self, dim: str, lo: Any, hi: Any, end: Any, late: int, every: int, body: Until, carry: Any
    ) -> tuple[Any, Any]:
        known = end
        for time in range(lo, hi):
            if (time - lo) % every == 0:
                known = end
            if time >= known + late:
                break
            goes_on, after, carry = body(time, carry)
            end = end if goes_on else min(end, after)
        return end, carry

    def cond(self, condition: Any, body: Callable[[Any], Any], carry: Any) -> Any:
        return body(carry) if condition else carry

    def minimum(self, left: Any, right: Any) -> Any:
        return min(left, right)

    def read(self, store: Any, starts: Starts, sizes: tuple[int, ...]) -> Any:
        key = tuple(
            slice(s := min(max(int(at), 0), n - size), s + size)
            for at, size, n in zip(starts, sizes, store.shape, strict=True)
        )
        return store[key].copy()

    def read_all(self, store: Any) -> Any:
        return store

    def gather(self, store: Any, axis: int, at: Any) -> Any:
        return self.xp.take(store, self.xp.clip(at, 0, store.shape[axis] - 1), axis=axis)

    def write(self, store: Any, starts: Starts, value: Any, also: Starts | None = None) -> Any:
        for at in (starts,) if also is None else (starts, also):
            store[tuple(slice(None) if s is None else int(s) for s in at)] = value
        return store

    def write_box(self, store: Any, starts: Starts, value: Any) -> Any:
        pairs = zip(starts, value.shape, strict=True)
        store[tuple(slice(int(s), int(s) + n) for s, n in pairs)] = value
        return store


def without_warnings(run: Callable[..., Any]) -> Callable[..., Any]:
    """Run without NumPy's warnings, as on other backends: integers wrap around, 1 / 0 is inf.

    Values that are computed and then hidden, such as 1 / t at t = 0, may be anything;
    check="nan" finds all others.
    """

    def quiet(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(*args)

    return quiet


class NumpyArrays:
    """The operations on arrays shared by all backends whose arrays are NumPy's."""

    name = "numpy"
    target = PLAIN
    compiles_whole = False
    threaded = False  # NumPy holds the interpreter for most of a launch

    def __init__(self) -> None:
        self.machine = NumpyMachine()

    def reader(self, read: Reading) -> Callable[..., list[Any]]:
        return partial(read, self.machine)

    def array(self, array: Any) -> Any:
        return np.array(array, copy=True, order="C")

    def final_numpy(self, array: Any) -> Any:
        return array

    adopt = borrow = wait = final_numpy

    def from_host_call(self, array: np.ndarray) -> Any:
        return self.array(array)

    def staging(self, shape: tuple[int, ...], dtype: str) -> None:
        """None: the results of a launch may alias its arguments."""

    def arena(self, nbytes: int, views: Sequence[View]) -> list[Any]:
        block = np.zeros(nbytes + ALIGNMENT, np.uint8)
        block = block[-block.ctypes.data % ALIGNMENT :]
        out: list[Any] = []
        for at, shape, dtype in views:
            size = prod(shape) * np.dtype(dtype).itemsize
            out.append(block[at : at + size].view(dtype).reshape(shape))
        return out

    def synchronize(self) -> None:
        pass

    def from_dlpack(self, array: Any) -> Any:
        try:
            return np.from_dlpack(array)
        except BufferError:  # on a device whose memory the host cannot read
            return np.asarray(array.cpu() if hasattr(array, "cpu") else array)

    def host_view(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    host_operand = host_view

    def numpy(self, array: Any) -> np.ndarray:
        return np.array(array, copy=True)

    copy_to_host = copy_to_device = numpy


class NumpyBackend(NumpyArrays):
    """Regions as source that calls NumPy, generated at their first launch."""

    compiles_whole = True

    def compile(self, plan: StoragePlan, region: Region) -> Callable[..., tuple[Any, ...]]:
        return without_warnings(LazyFunction(lambda *_: defined(region, *written(plan, region))))

    def compile_whole(self, plan: StoragePlan, region: Region, finish: Finish) -> WholeProgram:
        def make(seed: Any, inputs: Mapping[str, Any]) -> WholeProgram:
            return defined(region, *written_whole(plan, region, finish, inputs))

        return without_warnings(LazyFunction(make))

    def accepts(self, array: object) -> bool:
        return type(array) is np.ndarray and array.flags.carray

    def argument(self, array: Any) -> np.ndarray:
        return array if isinstance(array, np.ndarray) else self.from_dlpack(array)
