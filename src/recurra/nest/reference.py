"""The reference of a problem: an explicit evaluation over the index space, in float64.

It uses no strides, loops or code: NumPy indexes the arrays at every index point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from recurra.nest.problem import NestProblem, TensorAccess

Array = np.ndarray
Grid = Mapping[str, int | Array]
POINTS = 2**22  # index points evaluated at once

_POST: Mapping[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "abs": np.abs,
    "negate": np.negative,
    "square": np.square,
}


def evaluate(problem: NestProblem, inputs: Sequence[Array], out: Array) -> None:
    """Write `out`, [output shape]; elements outside of the output's access stay as they are."""
    _evaluate(problem, inputs, out, {})


def sampled(problem: NestProblem, inputs: Sequence[Array], out: Array, count: int) -> Array:
    """Write about `count` elements of `out`, at random and at the ends of indices, and return their
    mask [output shape]. For problems of too many points to visit them all.
    """
    random, mask = np.random.default_rng(7), np.zeros(problem.output.shape, np.bool_)
    sizes = {i: n for i, n in problem.sizes if i in problem.output.indices}
    for _ in range(count):
        fixed = {
            i: int(random.choice([0, n - 1, *random.integers(n, size=4)])) for i, n in sizes.items()
        }
        element = _at(problem.output, fixed)
        if not mask[element]:  # with `initial`, an element must be computed once
            _evaluate(problem, inputs, out, fixed)
            mask[element] = True
    return mask


def _evaluate(
    problem: NestProblem, inputs: Sequence[Array], out: Array, fixed: dict[str, int]
) -> None:
    free = [i for i, _ in problem.sizes if i not in fixed]
    kept = [i for i in free if i in problem.output.indices]
    split = next((i for i in kept if problem.extents[i] > 1), None)
    if math.prod(problem.extents[i] for i in free) > POINTS and split:
        for value in range(problem.extents[split]):
            _evaluate(problem, inputs, out, fixed | {split: value})
        return
    grid: dict[str, int | Array] = dict(fixed)
    axes = kept + [i for i in free if i in problem.reduced]
    for k, index in enumerate(axes):
        grid[index] = np.arange(problem.extents[index]).reshape([-1] + [1] * (len(axes) - k - 1))
    shape = [problem.extents[i] for i in axes]
    term = np.ones(shape)
    for access, x in zip(problem.inputs, inputs, strict=True):
        term = term * np.asarray(x[_at(access, grid)], np.float64)
    reduced = tuple(range(len(kept), len(axes)))
    value = term.sum(axis=reduced) if problem.combine == "sum" else term.max(axis=reduced)
    for index in kept:  # without the reduced axes, which come last
        x = np.asarray(grid[index])
        grid[index] = x.reshape(x.shape[: x.ndim - len(reduced)])
    elements = tuple(np.broadcast_to(x, value.shape) for x in _at(problem.output, grid))
    if problem.initial:
        old = np.asarray(out[elements], np.float64)
        value = value + old if problem.combine == "sum" else np.maximum(value, old)
    out[elements] = _POST[problem.post](value) if problem.post else value


def _at(access: TensorAccess, grid: Grid) -> tuple[int | Array, ...]:
    return tuple(axis.offset + sum(c * grid[i] for i, c in axis.terms) for axis in access.at)
