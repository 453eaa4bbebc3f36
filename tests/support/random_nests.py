"""Random contractions, and arrays laid out as their strides say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from recurra.nest.actions import Actions
from recurra.nest.dtypes import DTYPES
from recurra.nest.loops import Nest, untiled
from recurra.nest.problem import Affine, NestProblem, TensorAccess
from recurra.nest.reference import evaluate

Array = NDArray[Any]
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24, 31, 32, 33, 40, 48, 65)


def random_problem(r: Random, *, points: int = 20_000, dtype: str | None = None) -> NestProblem:
    """Any contraction of up to `points` index points: sums, strides, gathers, posts, types."""
    names = list("mknhrs")[: r.choice([1, 2, 3, 3, 3, 4, 5])]
    sizes = _sizes(r, names, points)
    kept = [i for i in names if r.random() < 0.6]
    r.shuffle(kept)
    dtype = dtype or r.choice(["f32", "f32", "f64"])
    count = r.choice([1, 2, 2, 2, 3])
    parts = [_axes(r, names) for _ in range(count)]
    missing = [i for i in names if i not in kept and not any(_mentions(p, i) for p in parts)]
    parts[0] += [Affine(((i, 1),)) for i in missing]
    r.shuffle(parts[0])
    at = [Affine(((i, r.choice([1, 1, 1, 2])),), r.choice([0, 0, 0, 3])) for i in kept]
    inputs = [
        _access(r, name, p, sizes, _of_input(r, dtype), broadcast=True)
        for name, p in zip("ABD", parts, strict=False)
    ]
    output = _access(r, "C", at, sizes, dtype, broadcast=False)
    combine: Any = r.choice(["sum", "sum", "sum", "max"])
    post: Any = r.choice([None, None, "relu", "abs", "negate", "square"])
    return NestProblem(
        tuple(sizes.items()), output, tuple(inputs), combine, post, r.random() < 0.25
    )


def _of_input(r: Random, dtype: str) -> str:
    return r.choice(["f32", "f32", "bf16"]) if dtype == "f32" else dtype


def _sizes(r: Random, names: list[str], points: int) -> dict[str, int]:
    sizes = {i: r.choice(SIZES) for i in names}
    while np.prod(list(sizes.values())) > points:
        i = r.choice(names)
        sizes[i] = max(1, sizes[i] // 2)
    return sizes


def _axes(r: Random, names: list[str]) -> list[Affine]:
    some = [i for i in names if r.random() < 0.65] or [r.choice(names)]
    r.shuffle(some)
    axes = [Affine(((i, r.choice([1, 1, 1, 1, 2, -1])),)) for i in some]
    if len(axes) > 1 and r.random() < 0.3:  # h + r, as convolutions have it
        a, b = axes.pop(), axes.pop()
        axes.append(Affine((*a.terms, *b.terms), r.choice([0, 1])))
    return axes


def _mentions(axes: list[Affine], index: str) -> bool:
    return any(index == i for axis in axes for i, _ in axis.terms)


def _access(
    r: Random, name: str, at: list[Affine], sizes: dict[str, int], dtype: str, *, broadcast: bool
) -> TensorAccess:
    at = [replace(a, offset=a.offset - min(0, a.range(sizes)[0])) for a in at]
    shape = tuple(a.range(sizes)[1] + 1 + r.choice([0, 0, 0, 2]) for a in at)
    order = list(range(len(at)))
    if r.random() < 0.3:
        r.shuffle(order)
    strides, step = [0] * len(at), r.choice([1, 1, 1, 1, 3])
    for axis in reversed(order):
        strides[axis] = step * (-1 if r.random() < 0.07 else 1)
        step *= shape[axis] + r.choice([0, 0, 0, 1, 5])
    if broadcast and at and r.random() < 0.1:
        strides[r.randrange(len(at))] = 0
    return TensorAccess(name, dtype, shape, tuple(strides), tuple(at))


def laid_out(
    access: TensorAccess, r: Random, *, low: int = -4, high: int = 4
) -> tuple[Array, Array]:
    """An array of small integers with the access's strides, and the memory it lies in.

    Small integers make every order of summation exact, so answers are compared bit for bit.
    """
    kind = DTYPES[access.dtype]
    back = sum(-s * (n - 1) for s, n in zip(access.strides, access.shape, strict=True) if s < 0)
    reach = 1 + sum(abs(s) * (n - 1) for s, n in zip(access.strides, access.shape, strict=True))
    values = np.random.default_rng(r.randrange(2**32)).integers(low, high + 1, reach)
    memory = values.astype(kind)
    item = memory.itemsize
    view = as_strided(memory[back:], access.shape, [s * item for s in access.strides])
    return view, memory


def random_nest(r: Random, problem: NestProblem, actions: Actions, steps: int = 12) -> Nest:
    """Where `steps` random legal actions lead."""
    nest = untiled(problem)
    for _ in range(steps):
        ways = list(actions.successors(nest).values())
        if not ways:
            break
        nest = r.choice(ways)
    return nest


def answers(r: Random, nest: Nest, call: Callable[..., None]) -> tuple[Array, Array]:
    """The whole memory of the output: as the kernel leaves it, and as the oracle does."""
    p = nest.problem
    inputs = [laid_out(t, r) for t in p.inputs]
    out, got = laid_out(p.output, r)
    want = got.copy()
    start = (address(out) - address(got)) // got.itemsize
    evaluate(p, [x for x, _ in inputs], as_strided(want[start:], out.shape, out.strides))
    call(*(address(x) for x, _ in inputs), address(out))
    return got, want


def address(x: Array) -> int:
    return x.__array_interface__["data"][0]
