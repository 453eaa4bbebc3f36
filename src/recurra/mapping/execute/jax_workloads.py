"""JAX functions, and the models of the library, as workloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from recurra.mapping.execute.workload import Array, Compute, Operation, TensorSpec, Workload
from recurra.mapping.model_library import library_model


def from_jax(
    function: Callable[..., object], *arguments: object, name: str = "", seed: int = 0
) -> Workload:
    """Return a traceable function as a workload; an instruction is a contraction, a loop, or a
    piece that XLA fuses.

    Arguments are arrays, or `jax.ShapeDtypeStruct`s for random numbers. XLA computes the result of
    a piece in its own memory; the copy to its address is part of the instruction.
    """
    from recurra.frontend.jax.compiled_pieces import pieces_of
    from recurra.frontend.jax.jaxpr import flattened

    traced = pieces_of(function, *arguments)
    random = np.random.default_rng(seed)
    leaves, _ = flattened(arguments)
    inputs = {
        k: np.asarray(_array(x, random), traced.values[k].dtype)
        for k, x in zip(traced.arguments, leaves, strict=True)
    }
    return Workload(
        name or getattr(function, "__name__", "function"),
        tuple(TensorSpec(x.shape, x.dtype) for x in traced.values),
        tuple(Operation(p.name, p.reads, p.writes, _compute(p.call)) for p in traced.pieces),
        {**inputs, **traced.constants},
        traced.results,
    )


def _array(value: Any, random: np.random.Generator) -> Array:
    """Draw positive numbers, so small that sums of products stay small; integers below eight."""
    if not hasattr(value, "shape") or hasattr(value, "__array__"):
        return np.asarray(value)
    if np.dtype(value.dtype).kind != "f":
        return random.integers(0, 8, value.shape).astype(value.dtype)
    fan = max(1, math.prod(value.shape[:-1]))
    return np.asarray(np.abs(random.standard_normal(value.shape)) / fan, value.dtype)


def _compute(call: Callable[..., Sequence[Any]]) -> Compute:
    def compute(operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        if not all(isinstance(x, np.ndarray) for x in outputs):  # of PyTorch, on a device
            from recurra.mapping.execute.device import compute as on_device

            return on_device(call, operands, outputs)
        for output, x in zip(outputs, call(*operands), strict=True):
            np.copyto(output, np.asarray(x))
        return None

    return compute


def workload_of(name: str) -> Workload:
    """Return a model of the library with random numbers; raises `ProblemError` if it has none."""
    function, arguments, _ = library_model(name, "program").build()
    return from_jax(function, *arguments, name=name)
