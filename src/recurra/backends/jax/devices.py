"""The devices that JAX finds to run programs on, and waiting until they are idle."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import jax
import numpy as np
from jax._src.xla_bridge import backends_are_initialized

from recurra.errors import RecurraError

ASYNC = "jax_cpu_enable_async_dispatch"


@cache
def ends_at_return() -> bool:
    """Are launches on the CPU synchronous? They are if JAX had not started before.

    Otherwise JAX hands each launch to another thread and wakes this one, which takes as long as
    some small networks.
    """
    if not backends_are_initialized():
        jax.config.update(ASYNC, False)
    return not jax.config.values[ASYNC]


def devices() -> list[Any]:
    """Return the devices of JAX. Raises RecurraError if it finds none."""
    ends_at_return()
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where a plugin is not installed
        wanted = os.environ.get("JAX_PLATFORMS") or jax.config.jax_platforms  # pyright: ignore
        why = str(error).splitlines()[:1]
        raise RecurraError.at_user_line(
            "JAX finds no device to run the program on",
            facts="; ".join([f"it is to look for {wanted or 'any'} (JAX_PLATFORMS)", *why]),
            hint="leave JAX_PLATFORMS out, set it to cpu, or take another backend: "
            'compile(.., backend="numpy")',
        ) from None


def synchronize(used: Iterable[Any]) -> None:
    """Wait until devices have finished all launches; each runs its launches in order."""
    jax.block_until_ready([_launch(_number(device)) for device in used])


@jax.jit
def _launch(array: Any) -> Any:
    return array + 1


@cache
def _number(device: Any) -> Any:
    return jax.device_put(np.zeros((), np.int32), device)


@cache
def settle_at_exit() -> None:
    """Have Python wait for launches before it ends: callbacks and deallocations need it."""
    atexit.register(lambda: synchronize(jax.local_devices()))
