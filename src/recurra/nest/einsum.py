"""Einsum notation to problems: "mk,kn->mn", or "n(2h+r)(2w+s)c,rsck->nhwk", a strided convolution.

An axis is a letter, or an affine sum of letters in brackets.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from recurra.errors import ShapeError
from recurra.nest.problem import (
    RESULTS,
    Affine,
    Combine,
    NestProblem,
    Post,
    TensorAccess,
    contiguous,
)
from recurra.nest.text import affine

_AXIS = re.compile(r"[a-z]|\([^()]*\)")
_WORD = re.compile(r"(?:[a-z]|\([^()]*\))*")
OUTPUT = "C"
INPUTS = "ABDEFGHIJKLMNOPQRSTUVWXYZ"


def axes_of(words: str) -> tuple[list[tuple[Affine, ...]], tuple[Affine, ...]]:
    """Return the axes of every input and of the output; raise ShapeError for malformed words."""
    if not isinstance(words, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _malformed(words, "it is no text")
    left, arrow, right = words.replace(" ", "").partition("->")
    if not arrow:
        raise _malformed(words, "there is no -> before the output")
    parts = [*left.split(","), right]
    for part in parts:
        if not _WORD.fullmatch(part):
            raise _malformed(words, f"{part!r} is not made of letters a to z and bracketed sums")
    if not all(parts[:-1]):
        raise _malformed(words, "an input has no axis")
    *inputs, output = [tuple(affine(w.strip("()")) for w in _AXIS.findall(part)) for part in parts]
    known = {i for part in inputs for axis in part for i, _ in axis.terms}
    if stray := sorted({i for axis in output for i, _ in axis.terms} - known):
        raise _malformed(words, f"{stray[0]} is in the output, but in no input")
    return inputs, output


def letters(words: str) -> list[str]:
    """Return the indices in order of first mention, which is the order of sizes."""
    inputs, output = axes_of(words)
    return list(
        dict.fromkeys(i for part in (*inputs, output) for axis in part for i, _ in axis.terms)
    )


def from_sizes(
    words: str,
    sizes: Mapping[str, int] | Sequence[int] = (),
    *,
    dtype: str = "f32",
    combine: Combine = "sum",
    post: Post | None = None,
    initial: bool = False,
) -> NestProblem:
    """Return a contraction of C-contiguous tensors; sizes by letter, or in order of first mention.

    from_sizes("mk,kn->mn", {"m": 128, "k": 64, "n": 32}): A [m,k], B [k,n], C [m,n]. C is f32 where
    the inputs are bf16.
    """
    inputs, output = axes_of(words)
    extents = _sizes(words, sizes)
    shapes = [tuple(_reach(axis, extents) for axis in part) for part in (*inputs, output)]
    layouts = [(shape, contiguous(shape)) for shape in shapes]
    dtypes = [dtype] * len(inputs)
    return _problem((inputs, output), extents, layouts, dtypes, (combine, post, initial))


def from_layouts(
    words: str,
    layouts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    *,
    dtypes: Sequence[str] | None = None,
    combine: Combine = "sum",
    post: Post | None = None,
    initial: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> NestProblem:
    """Return the contraction of tensors of these (shape, strides in elements) and types.

    An output without a layout is C-contiguous; types are f32 by default. `sizes` has those of
    letters that never stand alone.
    """
    inputs, output = axes_of(words)
    if len(layouts) not in (len(inputs), len(inputs) + 1):
        raise ShapeError(
            f"{words!r} has {len(inputs)} inputs", facts=f"{len(layouts)} arrays are given"
        )
    extents = dict(sizes or {})
    for part, (shape, _) in zip((*inputs, output), layouts, strict=False):
        _unify(words, part, shape, extents)
    extents = _sizes(words, extents)
    shape = tuple(_reach(axis, extents) for axis in output)
    every = [*layouts, (shape, contiguous(shape))][: len(inputs) + 1]
    dtypes = dtypes or ["f32"] * len(inputs)
    return _problem((inputs, output), extents, every, dtypes, (combine, post, initial))


def _problem(
    parts: tuple[list[tuple[Affine, ...]], tuple[Affine, ...]],
    extents: Mapping[str, int],
    layouts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    dtypes: Sequence[str],
    rest: tuple[Combine, Post | None, bool],
) -> NestProblem:
    inputs, output = parts
    if len(dtypes) == len(inputs):
        wide = next((d for d in dtypes if d != "bf16"), "bf16")
        dtypes = [*dtypes, RESULTS.get(wide, wide)]
    tensors = [
        TensorAccess(name, dtype, shape, strides, at)
        for name, dtype, (shape, strides), at in zip(
            (*INPUTS[: len(inputs)], OUTPUT), dtypes, layouts, (*inputs, output), strict=True
        )
    ]
    return NestProblem(tuple(extents.items()), tensors[-1], tuple(tensors[:-1]), *rest)


def _unify(
    words: str, part: tuple[Affine, ...], shape: tuple[int, ...], extents: dict[str, int]
) -> None:
    if len(part) != len(shape):
        raise ShapeError(
            f"an array does not fit {words!r}",
            facts=f"its shape is {shape}, for {len(part)} axes {' '.join(map(str, part))}",
        )
    for axis, n in zip(part, shape, strict=True):
        if len(axis.terms) != 1 or axis.terms[0][1] != 1 or axis.offset:
            continue
        index = axis.terms[0][0]
        if extents.setdefault(index, n) != n:
            raise ShapeError(
                f"index {index} of {words!r} has two sizes", facts=f"{extents[index]} and {n}"
            )


def _sizes(words: str, sizes: Mapping[str, int] | Sequence[int]) -> dict[str, int]:
    order = letters(words)
    value: Any = sizes
    if isinstance(value, str | bytes) or not isinstance(value, Mapping | Sequence):
        raise ShapeError(
            f"sizes of {words!r} are integers, by letter or in order",
            facts=f"given: {sizes!r}",
            hint=_some_sizes(order),
        )
    if not isinstance(sizes, Mapping):
        if len(sizes) != len(order):
            raise ShapeError(
                f"{words!r} has {len(order)} sizes: {', '.join(order)}",
                facts=f"{len(sizes)} are given: {', '.join(map(str, sizes)) or 'none'}",
                hint=_some_sizes(order),
            )
        sizes = dict(zip(order, sizes, strict=True))
    if missing := [i for i in order if i not in sizes]:
        raise ShapeError(
            f"index {missing[0]} of {words!r} has no size",
            facts=f"sizes: {', '.join(f'{i}={n}' for i, n in sizes.items()) or 'none'}",
            hint=_some_sizes(order),
        )
    if stray := [i for i in sizes if i not in order]:
        raise ShapeError(f"{words!r} has no index {stray[0]}", facts=f"it has {', '.join(order)}")
    return {i: _integer(i, sizes[i]) for i in order}


def _some_sizes(order: Sequence[str]) -> str:
    return f"sizes={{{', '.join(f'{i!r}: 64' for i in order)}}}"


def _integer(index: str, number: object) -> int:
    try:
        return operator.index(number)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise ShapeError(f"the size of {index} is no integer", facts=f"it is {number!r}") from None


def _reach(axis: Affine, extents: Mapping[str, int]) -> int:
    return axis.range(extents)[1] + 1


def _malformed(words: str, facts: str) -> ShapeError:
    return ShapeError(
        f"{words!r} is not an einsum", facts=facts, hint='as in "mk,kn->mn" or "(2h+r),r->h"'
    )
