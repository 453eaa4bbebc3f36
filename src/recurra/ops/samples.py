"""samples: rows of what lies outside of fast memory, taken by the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from recurra.ir.op import Array
from recurra.ops.control import Call

FUNCTION = "samples"


@dataclass(frozen=True)
class Host:
    """What the host calls holds no state."""

    pure: bool = True


class Samples(Call):
    """y = rows of x, x: [*points, *row], k: [*n] -> [*n, *row]; k numbers points as axes in `order`

    As a call, because only the rows that are taken are read from a disk (`memory.swap`).
    """

    order: tuple[int, ...] = ()

    def eval(self, xp: Any, *xs: Array) -> tuple[Array, ...]:
        x, k = np.asarray(xs[0]), np.asarray(xs[1])
        lead = self.lead(k.ndim, x.ndim)
        return (x[self.places(k, x.shape[:lead])],)

    def lead(self, numbers: int, rank: int) -> int:
        """How many axes of x count points, for the ranks of k and x."""
        return rank - (len(self.results[0][1]) - numbers)

    def places(self, k: Array, sizes: tuple[int, ...]) -> tuple[Array, ...]:
        """Where the points are that k numbers, along axes of these sizes."""
        order = self.order or tuple(range(len(sizes)))
        found = np.unravel_index(k, [sizes[a] for a in order])
        return tuple(found[order.index(a)] for a in range(len(sizes)))


Call.table[FUNCTION] = Host()
