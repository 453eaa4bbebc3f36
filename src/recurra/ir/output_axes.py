"""The layout of an output whose dims became axes, and the way back to the layout users see."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import TypeVar

from recurra.ir.array_protocols import ArrayNamespace, LibraryArray
from recurra.ir.graph import Graph

A = TypeVar("A", bound=LibraryArray)

Axes = tuple[tuple[str, ...], tuple[str, ...]]
"""The layout of an output: its remaining dims, and the dim that each axis was ("" for none)."""


@dataclass(frozen=True)
class RestoredAxes:
    """A callable that lays out an array [*dims, *axes] as [*before, *spatial]."""

    order: tuple[int, ...]
    groups: tuple[int, ...]
    """The number of axes that each dim of `before` was split into."""

    def __call__(self, array: A, xp: ArrayNamespace) -> A:
        array = turned(array, self.order, xp)
        if all(n == 1 for n in self.groups):
            return array
        sizes = iter(array.shape)
        shape = [prod(islice(sizes, n)) for n in self.groups]
        return xp.reshape(array, (*shape, *sizes))


def restore_functions(graph: Graph, before: tuple[str, ...], axes: Axes) -> RestoredAxes:
    """Return the callable that lays out an array [*dims, *axes] as [*before, *spatial].

    A dim that `graph` splits into groups becomes one axis again.
    """
    have = [*axes[0], *axes[1]]
    split = [[d] if d in have else _halves(graph, d) for d in before]
    order = [have.index(d) for parts in split for d in parts]
    order += [k for k, d in enumerate(have) if d == ""]
    return RestoredAxes(tuple(order), tuple(map(len, split)))


def turned(array: A, order: tuple[int, ...], xp: ArrayNamespace) -> A:
    """Permute the axes of an array; return the array itself if they are in order."""
    return array if order == tuple(range(len(order))) else xp.permute_dims(array, order)


def _halves(graph: Graph, dim: str) -> list[str]:
    found = graph.halves(dim)
    assert found is not None, f"{dim} is neither a dim nor an axis of the result"
    return [d.name for d in found]
