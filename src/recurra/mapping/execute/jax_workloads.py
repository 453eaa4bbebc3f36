"""JAX functions, and the models of the library, as workloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from recurra.mapping.execute.workload import Array, Compute, Datum, Operation, Workload
from recurra.mapping.library import LIBRARY
from recurra.storage.mapping_problem import ProblemError


def from_jax(
    function: Callable[..., object], *arguments: object, name: str = "", seed: int = 0
) -> Workload:
    """A traceable function, piece by piece: a contraction, a loop, or what XLA fuses.

    Arguments are arrays, or `jax.ShapeDtypeStruct`s for random numbers. XLA computes a piece's
    result in memory of its own; it is copied to its place as part of the instruction.
    """
    from recurra.frontend.jax.compiled_pieces import pieces_of
    from recurra.frontend.jax.jaxpr import flattened

    found = pieces_of(function, *arguments)
    random = np.random.default_rng(seed)
    leaves, _ = flattened(arguments)
    given = {
        k: np.asarray(_array(x, random), found.values[k].dtype)
        for k, x in zip(found.arguments, leaves, strict=True)
    }
    return Workload(
        name or getattr(function, "__name__", "function"),
        tuple(Datum(x.shape, x.dtype) for x in found.values),
        tuple(Operation(p.name, p.reads, p.writes, _computed(p.call)) for p in found.pieces),
        {**given, **found.constants},
        found.results,
    )


def _array(value: Any, random: np.random.Generator) -> Array:
    """Positive numbers, so small that sums of products stay small; integers below eight."""
    if not hasattr(value, "shape") or hasattr(value, "__array__"):
        return np.asarray(value)
    if np.dtype(value.dtype).kind != "f":
        return random.integers(0, 8, value.shape).astype(value.dtype)
    fan = max(1, math.prod(value.shape[:-1]))
    return np.asarray(np.abs(random.standard_normal(value.shape)) / fan, value.dtype)


def _computed(call: Callable[..., Sequence[Any]]) -> Compute:
    def compute(operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        if not all(isinstance(x, np.ndarray) for x in outputs):  # of PyTorch, on a device
            from recurra.mapping.execute.device import compute as on_device

            return on_device(call, operands, outputs)
        for place, x in zip(outputs, call(*operands), strict=True):
            np.copyto(place, np.asarray(x))
        return None

    return compute


def workload_of(name: str) -> Workload:
    """A model of the library, with random numbers; raises `ProblemError` for a name it has not."""
    if name not in LIBRARY:
        raise ProblemError(
            f"there is no program {name!r}", facts=f"there are: {', '.join(LIBRARY)}"
        )
    entry = LIBRARY[name]
    make = getattr(import_module(f"recurra.mapping.models.{entry.module}"), entry.function)
    function, arguments, _ = make(**dict(entry.options))
    return from_jax(function, *arguments, name=name)
