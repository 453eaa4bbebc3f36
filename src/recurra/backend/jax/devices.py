"""Devices: what JAX finds to run programs on."""

from __future__ import annotations

import os
from typing import Any

import jax

from recurra.errors import RecurraError, here


def devices() -> list[Any]:
    """Return the devices of JAX. Raises RecurraError if it finds none."""
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where a plugin is not installed
        wanted = os.environ.get("JAX_PLATFORMS") or jax.config.jax_platforms  # pyright: ignore
        why = str(error).splitlines()[:1]
        raise RecurraError(
            "JAX finds no device to run the program on",
            facts="; ".join([f"it is to look for {wanted or 'any'} (JAX_PLATFORMS)", *why]),
            hint="leave JAX_PLATFORMS out, set it to cpu, or take another backend: "
            'compile(.., backend="numpy")',
            loc=here(),
        ) from None
