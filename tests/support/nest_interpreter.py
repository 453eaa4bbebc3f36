"""Run a nest loop by loop, in plain Python, and count the instructions of its code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from recurra.nest.loops import Nest
from recurra.nest.problem import TensorAccess
from recurra.nest.program import NestCode
from recurra.nest.reference import Array

_POST: Mapping[str | None, Callable[[float], float]] = {
    None: lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "abs": abs,
    "negate": lambda x: -x,
    "square": lambda x: x * x,
}


def run(nest: Nest, inputs: Sequence[Array], out: Array) -> None:
    """Write `out` by visiting every point of the compute nest, then of the write nest."""
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


def points(
    order: Sequence[tuple[str, int]], extents: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Yield every index point in the order in which loops (index, points per trip) visit it."""
    if not order:
        yield {}
        return
    (index, step), inner = order[0], order[1:]
    for start in range(0, extents[index], step):
        left = min(step, extents[index] - start)
        for point in points(inner, {**extents, index: left}):
            yield {**point, index: point.get(index, 0) + start}


def executions(program: NestCode, word: str) -> int:
    """Count the executions of an instruction."""
    times, total = [1], 0
    for name, *rest in program.code:
        if name == "repeat":
            times.append(times[-1] * rest[0])
        elif name == "end":
            times.pop()
        total += times[-1] * (name == word)
    return total
