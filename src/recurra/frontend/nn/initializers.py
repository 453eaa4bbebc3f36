"""Initializers of parameters: functions from a shape to a tensor, drawn with the seed of the run.

The fans of a matrix [in, out] are its sizes; those of a convolution's weight [out, in, *window] are
multiplied by the size of the window.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt

import numpy as np

from recurra.frontend import functions
from recurra.frontend.host_calls import call
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.types import Type

Initializer = Callable[[tuple[int, ...]], RecurrentTensor]


def constant(x: float) -> Initializer:
    return lambda shape: as_tensor(x, "f32").broadcast_to(shape)


def zeros() -> Initializer:
    return constant(0.0)


def ones() -> Initializer:
    return constant(1.0)


def normal(std: float = 1.0) -> Initializer:
    """N(0, std²)"""
    return lambda shape: functions.normal((), shape) * std


def uniform(bound: float) -> Initializer:
    """U(-bound, bound)"""
    return lambda shape: (functions.uniform((), shape) * 2.0 - 1.0) * bound


def he_normal(gain: float = 1.0) -> Initializer:
    """N(0, 2 / fan_in), scaled by `gain`."""
    return lambda shape: functions.normal((), shape) * (gain * (2.0 / fans(shape)[0]) ** 0.5)


def kaiming_normal(gain: float = sqrt(2.0)) -> Initializer:
    """N(0, gain² / fan_in) (He et al., 2015); the default is for relu."""
    return lambda shape: normal(gain / sqrt(fans(shape)[0]))(shape)


def kaiming_uniform(gain: float = sqrt(2.0)) -> Initializer:
    """A uniform distribution with the variance of kaiming_normal; torch's layers use gain √⅓."""
    return lambda shape: uniform(gain * sqrt(3.0 / fans(shape)[0]))(shape)


def xavier_normal(gain: float = 1.0) -> Initializer:
    """N(0, 2 gain² / (fan_in + fan_out)) (Glorot and Bengio, 2010)"""
    return lambda shape: normal(gain * sqrt(2.0 / sum(fans(shape))))(shape)


def xavier_uniform(gain: float = 1.0) -> Initializer:
    """A uniform distribution with the variance of xavier_normal."""
    return lambda shape: uniform(gain * sqrt(6.0 / sum(fans(shape))))(shape)


def orthogonal(gain: float = 1.0) -> Initializer:
    """Orthogonal rows (or columns, if there are more rows) of length `gain` (Saxe et al., 2013).

    The shape is treated as a matrix [shape[0], rest].
    """

    def initial(shape: tuple[int, ...]) -> RecurrentTensor:
        rows, columns = shape[0], prod(shape[1:])
        draws = functions.normal((), (rows, columns))
        found = call(orthonormal, Type("f32", (rows, columns)), draws, pure=True)
        return found.reshape(*shape) * gain

    return initial


def orthonormal(x: np.ndarray) -> np.ndarray:
    """The orthogonal QR factor, with signs fixed so that it is uniform for normal elements of x."""
    wide = x.shape[0] < x.shape[1]
    q, r = np.linalg.qr(x.T if wide else x)
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return q.T if wide else q


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """The numbers of inputs per output and of outputs per input (fan in, fan out), at least 1."""
    window = prod(shape[2:])
    into, out = shape[:2] if len(shape) == 2 else (prod(shape[1:2]) * window, shape[0] * window)
    return max(into, 1), max(out, 1)
