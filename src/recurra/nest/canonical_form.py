"""Canonical form: one representative of all problems that differ in names and orders only.

    C[i,k] = sum(A[i,j] * B[j,k])    for i<8 j<4 k<6
    C[m,n] = sum(A[k,n] * B[m,k])    for k<4 n<6 m<8
        →  C[a,b] = sum(A[c,b] * B[a,c])    for a<8 b<6 c<4

A schedule depends on the layout in memory only: axes are sorted by stride, indices are lettered in
the order in which the output and then the inputs mention them, and inputs are sorted by layout. The
nest of one problem is renamed for all others of the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from recurra.nest.einsum import INPUTS, OUTPUT
from recurra.nest.loops import Nest, NestLoop
from recurra.nest.problem import Affine, NestProblem, TensorAccess


@dataclass(frozen=True)
class CanonicalForm:
    """A problem, its canonical form, and the new names of its indices and inputs."""

    original: NestProblem
    problem: NestProblem
    indices: Mapping[str, str]
    inputs: Mapping[str, str]

    def to_canonical(self, nest: Nest) -> Nest:
        """Rename a nest of the original problem."""
        return _renamed(nest, self.problem, self.indices, self.inputs)

    def to_original(self, nest: Nest) -> Nest:
        """Rename a nest of the canonical form."""
        indices, inputs = (
            {new: old for old, new in x.items()} for x in (self.indices, self.inputs)
        )
        return _renamed(nest, self.original, indices, inputs)


def canonical_form(problem: NestProblem) -> CanonicalForm:
    """Return the canonical form of a problem."""
    output, *inputs = (_by_stride(t) for t in (problem.output, *problem.inputs))
    letters: dict[str, str] = {}
    _add_letters(letters, output, problem.extents)
    inputs.sort(key=lambda t: _layout(t, letters, problem.extents))
    for t in inputs:
        _add_letters(letters, t, problem.extents)
    names = dict(zip((t.name for t in inputs), INPUTS, strict=False))
    return CanonicalForm(
        problem,
        replace(
            problem,
            sizes=tuple(sorted((letters[i], n) for i, n in problem.sizes)),
            output=_lettered(output, OUTPUT, letters),
            inputs=tuple(_lettered(t, names[t.name], letters) for t in inputs),
        ),
        letters,
        names,
    )


def _by_stride(access: TensorAccess) -> TensorAccess:
    """Sort the axes by stride; those of one element, whose stride means nothing, come first."""
    axes = [
        (n > 1, -abs(stride) if n > 1 else 0, n, stride if n > 1 else 1, at)
        for n, stride, at in zip(access.shape, access.strides, access.at, strict=True)
    ]
    axes.sort(key=lambda axis: axis[:3])
    shape, strides, at = (tuple(axis[k] for axis in axes) for k in (2, 3, 4))
    return replace(access, shape=shape, strides=strides, at=at)


def _add_letters(letters: dict[str, str], access: TensorAccess, extents: Mapping[str, int]) -> None:
    """Add a letter for every new index of a tensor; in a sum, the largest step comes first."""
    for axis in access.at:
        for index, _ in sorted(axis.terms, key=lambda term: (-term[1], -extents[term[0]])):
            letters.setdefault(index, chr(ord("a") + len(letters)))


def _layout(
    access: TensorAccess, letters: Mapping[str, str], extents: Mapping[str, int]
) -> tuple[object, ...]:
    """Return the sort key of an input: its memory, and the steps of the output's indices in it."""
    at = [
        (axis.offset, sorted((letters.get(i, ""), extents[i], c) for i, c in axis.terms))
        for axis in access.at
    ]
    return access.dtype, access.shape, access.strides, at


def _lettered(access: TensorAccess, name: str, letters: Mapping[str, str]) -> TensorAccess:
    at = [Affine(tuple(sorted((letters[i], c) for i, c in x.terms)), x.offset) for x in access.at]
    return replace(access, name=name, at=tuple(at))


def _renamed(
    nest: Nest, problem: NestProblem, indices: Mapping[str, str], inputs: Mapping[str, str]
) -> Nest:
    def loops(part: tuple[NestLoop, ...]) -> tuple[NestLoop, ...]:
        return tuple(replace(loop, index=indices[loop.index]) for loop in part)

    packs = tuple(replace(pack, tensor=inputs[pack.tensor]) for pack in nest.packs)
    return replace(
        nest, problem=problem, compute=loops(nest.compute), write=loops(nest.write), packs=packs
    )
