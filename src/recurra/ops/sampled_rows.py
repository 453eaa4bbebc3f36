"""Rows of an array by number, if points are numbered in another order, or are on a disk."""

from __future__ import annotations

from math import prod

import numpy as np

from recurra.ir.array_protocols import ArrayNamespace
from recurra.ir.expr import Env, Expr
from recurra.ir.op import Array, Elementwise
from recurra.ir.user_objects import HostFunction
from recurra.ops.control import Call

FUNCTION = HostFunction("samples")  # without a value: the op itself is evaluated


class Samples(Call):
    """y = rows of x, x: [*points, *row], k: [*n] -> [*n, *row]; k numbers points as axes in `order`

    It is a call, so that only these rows are read from a disk (`storage.offload`).
    """

    order: tuple[int, ...] = ()

    @property
    def has_state(self) -> bool:
        return False

    def eval(self, xp: ArrayNamespace, *xs: Array) -> tuple[Array, ...]:
        x, k = np.asarray(xs[0]), np.asarray(xs[1])
        lead = self.lead(k.ndim, x.ndim)
        return (x[self.places(k, x.shape[:lead])],)

    def lead(self, numbers: int, rank: int) -> int:
        """The number of axes of x that are points, for the ranks of k and x."""
        return rank - (len(self.results[0][1]) - numbers)

    def places(self, k: Array, sizes: tuple[int, ...]) -> tuple[Array, ...]:
        """The places of the points that k numbers, along axes of these sizes."""
        order = self.order or tuple(range(len(sizes)))
        inside = np.clip(k, 0, prod(sizes) - 1)
        places = np.unravel_index(inside, [sizes[a] for a in order])
        return tuple(places[order.index(a)] for a in range(len(sizes)))


class Renumber(Elementwise):
    """y = the row-major number of a point, k its number with the axes in `order`

    Axes have these `sizes`; the last one varies fastest.
    """

    sizes: tuple[Expr | int, ...] = ()
    order: tuple[int, ...] = ()

    def run(self, xp: ArrayNamespace, env: Env, *xs: object, **_: object) -> Array:
        return self.at(env).eval(xp, *xs)

    def apply(self, xp: ArrayNamespace, k: Array) -> Array:
        places: dict[int, Array] = {}
        k = xp.clip(k, 0, prod(self.sizes) - 1)  # pyright: ignore[reportArgumentType]
        for a in reversed(self.order):
            places[a], k = k % self.sizes[a], k // self.sizes[a]
        y = places[0]
        for a in range(1, len(self.sizes)):
            y = y * self.sizes[a] + places[a]
        return y
