"""A launch of a compiled region: what a call costs beside its kernels, kept small.

JAX asks each argument what it is. That takes a third of a microsecond for an array of its own; of
a number it makes an array first, with every call, which takes four times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax

from recurra.cost.thresholds import MAX_TIME_KEPT


class _Times(dict[int, Any]):
    """Times of loops as arrays of one type, each made when it is first asked for; late ones stay
    numbers."""

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
    """The times of all launches on a device whose numbers are of 64 bits, or are not."""
    return _Times()


class CodeLaunch:
    """f(seed, *times, ..) of code that is made at its first call.

    The first `inner` of its times come again and again.
    """

    __slots__ = ("call", "inner", "make", "times")

    def __init__(self, make: Callable[[], Any], inner: int) -> None:
        self.make, self.inner = make, inner
        self.call: Callable[..., Any] | None = None
        self.times: dict[int, Any] = {}

    def __call__(self, seed: Any, *given: Any) -> tuple[Any, ...]:
        inner = self.inner
        if self.call is None:
            return self.first(seed, *given)
        if not inner:
            return self.call(seed, *given)
        times = self.times
        return self.call(seed, *[times[x] for x in given[:inner]], *given[inner:])

    def first(self, seed: Any, *given: Any) -> tuple[Any, ...]:
        """The first call; the others leave out the method of `jax.stages.Compiled`."""
        code = self.make()
        made = code(seed, *given)
        (device,) = seed.devices()
        self.times = _times(device, jax.config.jax_enable_x64)  # pyright: ignore
        self.call = getattr(code, "_call", None) or code
        return made
