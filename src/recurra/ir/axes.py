"""Axes: how an output of a program lies, whose dims became axes, and how it is put back."""

from __future__ import annotations

from math import prod
from typing import TypeVar

from recurra.ir.arrays import ArrayNamespace, LibraryArray
from recurra.ir.graph import Graph

A = TypeVar("A", bound=LibraryArray)

Axes = tuple[tuple[str, ...], tuple[str, ...]]  # of an output: dims left, and what its axes were


def restored(array: A, graph: Graph, before: tuple[str, ...], axes: Axes, xp: ArrayNamespace) -> A:
    """An array [*dims, *axes] as [*before, *spatial]; a dim that `graph` has in groups is one."""
    have = [*axes[0], *axes[1]]
    split = [[d] if d in have else _halves(graph, d) for d in before]
    order = [have.index(d) for parts in split for d in parts]
    order += [k for k, d in enumerate(have) if d == ""]
    array = array if order == sorted(order) else xp.permute_dims(array, tuple(order))
    if all(len(parts) == 1 for parts in split):
        return array
    shape, sizes = [], iter(array.shape)
    for parts in split:
        shape.append(prod(next(sizes) for _ in parts))
    return xp.reshape(array, (*shape, *sizes))


def _halves(graph: Graph, dim: str) -> list[str]:
    found = graph.halves(dim)
    assert found is not None, f"{dim} is neither a dim nor an axis of the result"
    return [d.name for d in found]
