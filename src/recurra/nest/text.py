"""The parser of problems as text: `parse(str(problem)) == problem`.

for m<128 k<64 n<32
A: f32[128,64]
B: f32[64,32] strides (1,64)
C: f32[128,32]
C[m,n] = relu(sum(A[m,k] * B[k,n], initial=C))
"""

from __future__ import annotations

import re
from typing import TypeVar, get_args

from recurra.errors import ShapeError
from recurra.nest.problem import Affine, Combine, NestProblem, Post, TensorAccess, contiguous

_LOOPS = re.compile(r"for((?: [a-z]\w*<-?\d+)+)")
_TENSOR = re.compile(r"([A-Za-z]\w*): (\w+)\[([\d,-]*)\](?: strides \(([\d,-]*)\))?")
_ACCESS = re.compile(r"([A-Za-z]\w*)\[([^\[\]]*)\]")
_CALL = re.compile(r"(\w+)\((.*)\)")
_TERM = re.compile(r"([+-]?)\s*(?:(\d+)\s*\*?\s*)?([a-z]\w*)?")


Layout = tuple[str, tuple[int, ...], tuple[int, ...]]
"""(type, shape, strides)"""
Word = TypeVar("Word")


def parse(text: str) -> NestProblem:
    """Return the problem that prints as `text`; raise ShapeError for the first malformed line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if len(lines) < 3:
        raise _malformed(lines[0] if lines else "", "a problem has at least three lines")
    loops = _LOOPS.fullmatch(lines[0])
    if not loops:
        raise _malformed(lines[0], "the first line is as in: for m<128 k<64 n<32")
    sizes = [word.split("<") for word in loops[1].split()]
    tensors = dict(_declaration(line) for line in lines[1:-1])
    return _statement(lines[-1], tensors, tuple((i, int(n)) for i, n in sizes))


def _declaration(line: str) -> tuple[str, Layout]:
    found = _TENSOR.fullmatch(line)
    if not found:
        raise _malformed(line, "a tensor is as in: B: f32[64,32] strides (1,64)")
    name, dtype, dims, strides = found.groups()
    shape = _numbers(dims)
    return name, (dtype, shape, contiguous(shape) if strides is None else _numbers(strides))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


def _statement(
    line: str, tensors: dict[str, Layout], sizes: tuple[tuple[str, int], ...]
) -> NestProblem:
    left, equals, right = (part.strip() for part in line.partition(" = "))
    if not equals:
        raise _malformed(line, "the last line is as in: C[m,n] = sum(A[m,k] * B[k,n])")
    output = _access(left, tensors, line)
    post: Post | None
    post, right = _unwrap(right, get_args(Post))
    combine: Combine | None
    combine, right = _unwrap(right, get_args(Combine))
    right, _, initial = (part.strip() for part in right.partition(", initial="))
    if initial and initial != output.name:
        raise _malformed(line, f"initial= names the output, {output.name}")
    inputs = tuple(_access(word.strip(), tensors, line) for word in right.split(" * "))
    if strange := sorted(set(tensors) - {t.name for t in (*inputs, output)}):
        raise _malformed(line, f"{strange[0]} has a type, but is not used")
    return NestProblem(sizes, output, inputs, combine or "sum", post, bool(initial))


def _unwrap(text: str, names: tuple[Word, ...]) -> tuple[Word | None, str]:
    found = _CALL.fullmatch(text)
    name = next((name for name in names if found and found[1] == name), None)
    return (name, found[2].strip()) if found and name else (None, text)


def _access(text: str, tensors: dict[str, Layout], line: str) -> TensorAccess:
    found = _ACCESS.fullmatch(text)
    if not found:
        raise _malformed(line, f"{text!r} is not as in: A[m,2*h+r]")
    if found[1] not in tensors:
        raise _malformed(line, f"{found[1]} has no type; tensors: {', '.join(tensors)}")
    dtype, shape, strides = tensors[found[1]]
    axes = tuple(affine(word) for word in found[2].split(",")) if found[2].strip() else ()
    return TensorAccess(found[1], dtype, shape, strides, axes)


def affine(text: str) -> Affine:
    """Parse `2*h+r-1` or `2h+r-1`; terms of one index are added up."""
    terms: dict[str, int] = {}
    offset, rest, first = 0, text.strip(), True
    while rest or first:
        found = _TERM.match(rest)
        sign, number, index = found.groups() if found else ("", None, None)
        if not found or (number is None and index is None) or not (first or sign):
            raise _malformed(text.strip(), "an axis is an affine sum of indices, as in 2*h+r")
        value = (-1 if sign == "-" else 1) * int(number or 1)
        if index is None:
            offset += value
        else:
            terms[index] = terms.get(index, 0) + value
        rest, first = rest[found.end() :].lstrip(), False
    return Affine(tuple((i, c) for i, c in terms.items() if c), offset)


def _malformed(text: str, facts: str) -> ShapeError:
    return ShapeError(f"not understood: {text!r}", facts=facts)
