"""Runs a nest loop by loop, in plain Python: what a schedule means. Slow, for small problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from recurra.nest.loops import Nest, points
from recurra.nest.problem import TensorAccess
from recurra.nest.reference import Array

_POST: Mapping[str | None, Callable[[float], float]] = {
    None: lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "abs": abs,
    "negate": lambda x: -x,
    "square": lambda x: x * x,
}


def run(nest: Nest, inputs: Sequence[Array], out: Array) -> None:
    """Writes `out` by visiting every point of the compute nest, then of the write nest."""
    p = nest.problem
    total: dict[tuple[int, ...], float] = {}
    for point in points(nest.steps, p.extents):
        term = 1.0
        for access, x in zip(p.inputs, inputs, strict=True):
            term *= float(x[_place(access, point)])
        to = _place(p.output, point)
        if to not in total and not p.initial:
            total[to] = term
            continue
        so_far = total.get(to, float(out[to]))
        total[to] = so_far + term if p.combine == "sum" else max(so_far, term)
    for point in points(nest.write_steps, p.extents):
        to = _place(p.output, point)
        out[to] = _POST[p.post](total[to])


def _place(access: TensorAccess, point: dict[str, int]) -> tuple[int, ...]:
    return tuple(a.offset + sum(c * point[i] for i, c in a.terms) for a in access.at)
