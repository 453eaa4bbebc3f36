"""Launches of compiled regions with little overhead beside their kernels.

JAX inspects each argument. That takes a third of a microsecond for an array of its own; a number is
made an array first, at every call, which takes four times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax

from recurra.cost.thresholds import MAX_TIME_KEPT


class _Times(dict[int, Any]):
    """Loop times as arrays of one type, each made at its first use; late times stay numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.array = jax.jit(lambda x: x).lower(0).compile()

    def __missing__(self, time: int) -> Any:
        if not 0 <= time < MAX_TIME_KEPT:
            return time
        self[time] = self.array(time)
        return self[time]


@cache
def _times(device: Any, wide: bool) -> _Times:
    """The times of all launches on a device, whose integers have 64 bits if `wide`."""
    return _Times()


class CodeLaunch:
    """The launch f(seed, *times, ..) of code that is made at its first call.

    The first `inner` times recur from call to call, so that their arrays are kept.
    """

    __slots__ = ("call", "inner", "make", "times")

    def __init__(self, make: Callable[[], Any], inner: int) -> None:
        self.make, self.inner = make, inner
        self.call: Callable[..., Any] | None = None
        self.times: dict[int, Any] = {}

    def __call__(self, seed: Any, *args: Any) -> tuple[Any, ...]:
        inner = self.inner
        if self.call is None:
            return self.first(seed, *args)
        if not inner:
            return self.call(seed, *args)
        times = self.times
        return self.call(seed, *[times[x] for x in args[:inner]], *args[inner:])

    def first(self, seed: Any, *args: Any) -> tuple[Any, ...]:
        """Make the first call; later ones bypass the method of `jax.stages.Compiled`."""
        code = self.make()
        results = code(seed, *args)
        (device,) = seed.devices()
        self.times = _times(device, jax.config.jax_enable_x64)  # pyright: ignore
        self.call = getattr(code, "_call", None) or code
        return results
