"""Rows of an array by number, where points are numbered in another order, or lie on a disk."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from recurra.ir.array_protocols import ArrayNamespace
from recurra.ir.expr import Env, Expr
from recurra.ir.op import Array, Elementwise
from recurra.ir.user_objects import HostFunction
from recurra.ops.control import Call

FUNCTION = HostFunction("samples")  # without a value: the op says what is done


class Samples(Call):
    """y = rows of x, x: [*points, *row], k: [*n] -> [*n, *row]; k numbers points as axes in `order`

    As a call, because only the rows that are taken are read from a disk (`storage.offload`).
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
        """Count the axes of x that count points, for the ranks of k and x."""
        return rank - (len(self.results[0][1]) - numbers)

    def places(self, k: Array, sizes: tuple[int, ...]) -> tuple[Array, ...]:
        """The places of the points that k numbers, along axes of these sizes."""
        order = self.order or tuple(range(len(sizes)))
        inside = np.clip(k, 0, prod(sizes) - 1)
        found = np.unravel_index(inside, [sizes[a] for a in order])
        return tuple(found[order.index(a)] for a in range(len(sizes)))


class Renumber(Elementwise):
    """y = the number of a point, k its number where the axes are counted in `order`

    Axes of these `sizes`; the last one counts fastest.
    """

    sizes: tuple[Expr | int, ...] = ()
    order: tuple[int, ...] = ()

    def run(self, xp: ArrayNamespace, env: Env, *xs: Any, **_: Any) -> Array:
        return self.at(env).eval(xp, *xs)

    def apply(self, xp: ArrayNamespace, k: Array) -> Array:
        found: dict[int, Array] = {}
        k = xp.clip(k, 0, prod(self.sizes) - 1)  # pyright: ignore[reportArgumentType]
        for a in reversed(self.order):
            found[a], k = k % self.sizes[a], k // self.sizes[a]
        y = found[0]
        for a in range(1, len(self.sizes)):
            y = y * self.sizes[a] + found[a]
        return y
