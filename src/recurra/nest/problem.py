"""NestProblem: a contraction of any number of tensors, as data (LoopTune, section 2).

    C[m,n] = relu(sum(A[m,k] * B[k,n]))      for m<128, k<64, n<32

Every axis of a tensor is accessed at an affine sum of indices, `X[n,2*h+r]`, so convolution and
pooling are contractions too. Indices that the output does not mention are reduced, by sum or max.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Literal, get_args

from recurra.errors import ShapeError

Combine = Literal["sum", "max"]
Post = Literal["relu", "abs", "negate", "square"]

ITEM_BYTES: Mapping[str, int] = {"f32": 4, "f64": 8, "bf16": 2}
RESULTS: Mapping[str, str] = {"f32": "f32", "f64": "f64", "bf16": "f32"}
"""Element type of the inputs → type of the sums and of the output."""
MAX_INDICES = 10  # loops of the untiled nest; the paper's nests have at most as many
MAX_INPUTS = 6
MAX_BYTES = 2**31 - 4096  # of one tensor: a 32-bit displacement reaches so far


@dataclass(frozen=True)
class Affine:
    """offset + Σ coefficient · index: the place on an axis. No coefficient is 0."""

    terms: tuple[tuple[str, int], ...]
    offset: int = 0

    def __str__(self) -> str:
        words = [i if c == 1 else f"-{i}" if c == -1 else f"{c}*{i}" for i, c in self.terms]
        if self.offset or not words:
            words.append(str(self.offset))
        return "+".join(words).replace("+-", "-")

    def range(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return the least and the largest value over all index points."""
        low, high = loop_bounds(c * (sizes[i] - 1) for i, c in self.terms)
        return self.offset + low, self.offset + high


def loop_bounds(reaches: Iterable[int]) -> tuple[int, int]:
    """Return the least and the largest sum of any of these numbers."""
    numbers = list(reaches)
    return sum(min(n, 0) for n in numbers), sum(max(n, 0) for n in numbers)


@dataclass(frozen=True)
class TensorAccess:
    """One tensor: type, shape, strides (in elements) and the access of every axis."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    at: tuple[Affine, ...]

    def __str__(self) -> str:
        return f"{self.name}[{','.join(map(str, self.at))}]"

    @property
    def declaration(self) -> str:
        """`A: f32[4,8]`, and the strides where they are not those of a C-contiguous array."""
        dims = ",".join(map(str, self.shape))
        text = f"{self.name}: {self.dtype}[{dims}]"
        if self.strides == contiguous(self.shape):
            return text
        return f"{text} strides ({','.join(map(str, self.strides))})"

    @cached_property
    def steps(self) -> Mapping[str, int]:
        """Elements between two points of each index; indices with a step of 0 are left out."""
        steps: dict[str, int] = {}
        for axis, stride in zip(self.at, self.strides, strict=True):
            for index, coefficient in axis.terms:
                steps[index] = steps.get(index, 0) + coefficient * stride
        return {index: step for index, step in steps.items() if step}

    @cached_property
    def base(self) -> int:
        """The element that is accessed at the origin of the index space."""
        return sum(a.offset * s for a, s in zip(self.at, self.strides, strict=True))

    @cached_property
    def span(self) -> tuple[int, int]:
        """The first and the last element of its memory, counted from element 0 of every axis."""
        return loop_bounds(s * (n - 1) for s, n in zip(self.strides, self.shape, strict=True))

    @cached_property
    def indices(self) -> frozenset[str]:
        return frozenset(i for axis in self.at for i, _ in axis.terms)


def expect_seconds(value: object, function: str) -> None:
    """Raise ShapeError unless a time budget is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ShapeError.at_user_line(
            f"recurra.nest.{function} is given seconds={value!r:.60}",
            facts=f"it takes a number, not a {type(value).__name__}",
            hint="seconds=1.0",
        )


def expect_problem(value: object, function: str) -> None:
    """Raise ShapeError unless the argument of a public function is a NestProblem."""
    if not isinstance(value, NestProblem):
        raise ShapeError.at_user_line(
            f"recurra.nest.{function} is given {value!r:.60}",
            facts=f"it takes a NestProblem, not a {type(value).__name__}",
            hint="make one: recurra.nest.contraction('mk,kn->mn', (64, 64, 64))",
        )


@dataclass(frozen=True)
class NestProblem:
    """output = post(combine over reduced indices of Π inputs); legal by construction.

    `sizes` are the extents of the indices, in the order of the untiled nest's loops. With
    `initial`, the output's old values take part in the reduction. Raises ShapeError where sizes,
    shapes and accesses do not fit. Inputs have the output's type, or are bf16 where it is f32.
    """

    sizes: tuple[tuple[str, int], ...]
    output: TensorAccess
    inputs: tuple[TensorAccess, ...]
    combine: Combine = "sum"
    post: Post | None = None
    initial: bool = False

    def __post_init__(self) -> None:
        check_problem(self)

    @cached_property
    def extents(self) -> Mapping[str, int]:
        return dict(self.sizes)

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        """The indices that the output does not mention."""
        return tuple(i for i, _ in self.sizes if i not in self.output.indices)

    @property
    def dtype(self) -> str:
        return self.output.dtype

    @property
    def flops(self) -> int:
        """Multiplications and additions, counted as two per index point."""
        return 2 * math.prod(n for _, n in self.sizes)

    def __str__(self) -> str:
        tensors = "\n".join(t.declaration for t in (*self.inputs, self.output))
        loops = " ".join(f"{i}<{n}" for i, n in self.sizes)
        return f"for {loops}\n{tensors}\n{self.statement}"

    @property
    def statement(self) -> str:
        """`C[m,n] = relu(sum(A[m,k] * B[k,n]))`"""
        text = " * ".join(map(str, self.inputs))
        if self.reduced or self.initial or self.combine != "sum":
            initial = f", initial={self.output.name}" if self.initial else ""
            text = f"{self.combine}({text}{initial})"
        return f"{self.output} = {self.post}({text})" if self.post else f"{self.output} = {text}"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous array."""
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def check_problem(problem: NestProblem) -> None:
    """Raise ShapeError unless every access of `problem` stays inside its tensor.

    The output's elements must be distinct: each output axis is accessed at one index of its own.
    """
    _check_sizes(problem)
    if not 1 <= len(problem.inputs) <= MAX_INPUTS:
        raise ShapeError(
            f"a contraction has 1 to {MAX_INPUTS} inputs",
            facts=f"this one has {len(problem.inputs)}",
            hint="contract some of them first",
        )
    if problem.combine not in get_args(Combine):
        raise _unknown("combine", problem.combine, get_args(Combine))
    if problem.post is not None and problem.post not in get_args(Post):
        raise _unknown("post", problem.post, get_args(Post))
    names = [t.name for t in (*problem.inputs, problem.output)]
    if len(set(names)) < len(names):
        raise ShapeError("every tensor needs a name of its own", facts=f"names: {', '.join(names)}")
    for tensor in (*problem.inputs, problem.output):
        _check_access(tensor, problem)
    _check_output(problem.output, problem.extents)
    used = frozenset[str]().union(*(t.indices for t in problem.inputs))
    if idle := [i for i in problem.reduced if i not in used]:
        raise ShapeError(
            f"index {idle[0]} has a size, but no tensor uses it",
            facts=f"tensors: {', '.join(map(str, (*problem.inputs, problem.output)))}",
            hint=f"leave {idle[0]} out",
        )


def _check_sizes(problem: NestProblem) -> None:
    names = [i for i, _ in problem.sizes]
    if not names:
        raise ShapeError("a contraction needs an index", hint="give a scalar an axis of size 1")
    if len(set(names)) < len(names):
        raise ShapeError("an index has two sizes", facts=f"indices: {', '.join(names)}")
    if len(names) > MAX_INDICES:
        raise ShapeError(
            "too many loops",
            facts=f"{len(names)} indices, where a nest begins with at most {MAX_INDICES}",
            hint="merge axes that are contiguous in all tensors (reshape)",
        )
    for index, n in problem.sizes:
        if n < 1:
            raise ShapeError(
                f"index {index} has no points", facts=f"its size is {n}, not 1 or more"
            )
        if n >= 2**31:
            raise ShapeError(f"index {index} is too long", facts=f"{n} points, less than 2^31 fit")


def _unknown(option: str, value: object, known: tuple[str, ...]) -> ShapeError:
    return ShapeError(f"there is no {option} {value!r}", facts=f"there are: {', '.join(known)}")


def _check_access(access: TensorAccess, problem: NestProblem) -> None:
    if access.dtype not in ITEM_BYTES:
        raise ShapeError(
            f"{access.name} has type {access.dtype}, which is not supported",
            facts=f"supported are {', '.join(ITEM_BYTES)}",
            hint="convert the array first",
        )
    if access is problem.output and RESULTS[access.dtype] != access.dtype:
        raise ShapeError(
            f"{access.name} would be {access.dtype}",
            facts=f"products of {access.dtype} are added up in {RESULTS[access.dtype]}, "
            "and written so",
            hint=f"make {access.name} {RESULTS[access.dtype]}",
        )
    if access.dtype != problem.dtype and RESULTS[access.dtype] != problem.dtype:
        raise ShapeError(
            "all tensors of a contraction have one type",
            facts=f"{access.name} is {access.dtype}, {problem.output.name} is {problem.dtype}",
        )
    if not len(access.shape) == len(access.strides) == len(access.at):
        raise ShapeError(
            f"{access} does not fit its tensor",
            facts=f"it has {len(access.at)} axes, shape {access.shape}, strides {access.strides}",
        )
    for k, (axis, n) in enumerate(zip(access.at, access.shape, strict=True)):
        _check_axis(access, k, axis, n, problem)
    low, high = access.span
    if (size := (high - low + 1) * ITEM_BYTES[access.dtype]) > MAX_BYTES:
        raise ShapeError(f"{access.name} is too large", facts=f"{size} bytes, at most {MAX_BYTES}")


def _check_axis(
    access: TensorAccess, position: int, axis: Affine, count: int, problem: NestProblem
) -> None:
    if count < 1:
        raise ShapeError(
            f"axis {position} of {access.name} has no elements", facts=f"shape {access.shape}"
        )
    for index, coefficient in axis.terms:
        if index not in problem.extents:
            raise ShapeError(
                f"index {index} of {access} has no size",
                facts=f"sizes: {', '.join(f'{i}={m}' for i, m in problem.sizes)}",
                hint=f"give a size for {index}",
            )
        assert coefficient, f"{axis} has a coefficient of 0"
    low, high = axis.range(problem.extents)
    if low < 0 or high >= count:
        sizes = ", ".join(f"{i}={problem.extents[i]}" for i, _ in axis.terms)
        raise ShapeError(
            f"{access} reaches past axis {position} of {access.name}",
            facts=f"the axis has {count} elements; {axis} is {low} to {high}, at {sizes}",
            hint="sizes that an axis and an index share must agree",
        )


def _check_output(access: TensorAccess, sizes: Mapping[str, int]) -> None:
    indices: set[str] = set()
    for axis in access.at:
        if len(axis.terms) > 1 or indices & {i for i, _ in axis.terms}:
            raise ShapeError(
                f"{access} is written more than once at some element",
                facts=f"axis {axis} is not one index that no other axis has",
                hint="sums of indices may be read, not written",
            )
        indices |= {i for i, _ in axis.terms}
    covered = 0  # how far the axes with smaller strides reach
    for step, n in sorted((abs(access.steps.get(i, 0)), sizes[i]) for i in indices):
        if n > 1 and step <= covered:
            raise ShapeError(
                f"elements of {access.name} lie on top of each other",
                facts=f"shape {access.shape} with strides {access.strides}",
                hint="write to an array of its own, not to a broadcast view",
            )
        covered += step * (n - 1)
