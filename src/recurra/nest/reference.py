"""The reference of a problem: an explicit evaluation over the index space, in float64.

It knows nothing of strides, loops or code: arrays are indexed by NumPy at every index point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from recurra.nest.problem import Affine, NestProblem, TensorAccess

Array = np.ndarray
Grid = Mapping[str, int | Array]
POINTS = 2**22  # index points that are evaluated at once

_POST: Mapping[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "abs": np.abs,
    "negate": np.negative,
    "square": np.square,
}


def evaluate(problem: NestProblem, inputs: Sequence[Array], out: Array) -> None:
    """Writes `out`, [output shape]; elements that the output's access never touches stay."""
    _evaluate(problem, inputs, out, {})


def sampled(problem: NestProblem, inputs: Sequence[Array], out: Array, count: int) -> Array:
    """Writes some `count` elements of `out`, at random and at the ends of indices; which they are,
    a mask [output shape]. For problems of too many points to visit them all.
    """
    random, mask = np.random.default_rng(7), np.zeros(problem.output.shape, np.bool_)
    sizes = {i: n for i, n in problem.sizes if i in problem.output.indices}
    for _ in range(count):
        fixed = {
            i: int(random.choice([0, n - 1, *random.integers(n, size=4)])) for i, n in sizes.items()
        }
        place = tuple(_value(axis, fixed) for axis in problem.output.at)
        if not mask[place]:  # what takes part in the result does so once
            _evaluate(problem, inputs, out, fixed)
            mask[place] = True
    return mask


def _evaluate(
    problem: NestProblem, inputs: Sequence[Array], out: Array, fixed: dict[str, int]
) -> None:
    free = [i for i, _ in problem.sizes if i not in fixed]
    split = next((i for i in free if i in problem.output.indices and problem.extents[i] > 1), None)
    if math.prod(problem.extents[i] for i in free) > POINTS and split:
        for value in range(problem.extents[split]):
            _evaluate(problem, inputs, out, fixed | {split: value})
        return
    grid: dict[str, int | Array] = dict(fixed)
    axes = [i for i in free if i in problem.output.indices] + [
        i for i in free if i in problem.reduced
    ]
    for k, index in enumerate(axes):
        grid[index] = np.arange(problem.extents[index]).reshape([-1] + [1] * (len(axes) - k - 1))
    shape = [problem.extents[i] for i in axes]
    term = np.ones(shape)
    for access, x in zip(problem.inputs, inputs, strict=True):
        term = term * np.asarray(x[_at(access, grid)], np.float64)
    reduced = tuple(range(len(axes) - sum(i in problem.reduced for i in axes), len(axes)))
    value = term.sum(axis=reduced) if problem.combine == "sum" else term.max(axis=reduced)
    place = np.broadcast_arrays(*_at(problem.output, _dropped(grid, axes, len(reduced))))
    place = tuple(np.broadcast_to(x, value.shape) for x in place)
    if problem.initial:
        old = np.asarray(out[place], np.float64)
        value = value + old if problem.combine == "sum" else np.maximum(value, old)
    out[place] = _POST[problem.post](value) if problem.post else value


def _dropped(grid: Grid, axes: list[str], count: int) -> Grid:
    """The grid of the output's indices alone: the last `count` axes are reduced away."""
    kept = axes[: len(axes) - count]
    return {
        i: x.reshape(x.shape[: x.ndim - count]) if i in kept and isinstance(x, np.ndarray) else x
        for i, x in grid.items()
    }


def _at(access: TensorAccess, grid: Grid) -> tuple[int | Array, ...]:
    return tuple(_value(axis, grid) for axis in access.at)


def _value(axis: Affine, grid: Grid) -> int | Array:
    return axis.offset + sum(c * grid[i] for i, c in axis.terms)
