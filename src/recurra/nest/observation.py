"""The observation of a nest by an agent: the graph of LoopTune's figure 5, and its vector form.

The graph has loops, tensors and computations; its edges are nesting, data flow, and the strides
(elements) between the accesses of a loop's consecutive trips. The vector has 20 numbers per loop
(section 3.3): cursor, size, tail, compute or write, and the number of tensors that the loop strides
through at distances 2^(b-1) < d <= 2^b, for bins b = 0 .. 15.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recurra.nest.loops import Nest
from recurra.nest.problem import NestProblem, TensorAccess
from recurra.support.renamed_names import old_names

BINS = 16
WIDTH = 4 + BINS
Vector = NDArray[np.float32]


@dataclass(frozen=True)
class StateGraph:
    """A nest as a graph. Loops are L0, L1, ..; tensors have their names, and T is the reduction."""

    loops: tuple[tuple[str, str], ...]
    """(name, text)"""
    tensors: tuple[str, ...]
    computations: tuple[str, ...]
    nesting: tuple[tuple[str, str], ...]
    flow: tuple[tuple[str, str], ...]
    strides: tuple[tuple[str, str, int], ...]
    """(loop, tensor, elements between two trips), without zeros"""
    cursor: str

    def __str__(self) -> str:
        strides: dict[str, list[str]] = {}
        for loop, tensor, stride in self.strides:
            strides.setdefault(loop, []).append(f"{tensor} {stride}")
        inside = dict(self.nesting)
        lines = [
            f"{name}: {text} -> {inside[name]}; strides: {', '.join(strides.get(name, ['none']))}"
            + ("  <<<" if name == self.cursor else "")
            for name, text in self.loops
        ]
        return "\n".join([*lines, *(f"{a} -> {b}" for a, b in self.flow)])


def state_graph(nest: Nest) -> StateGraph:
    """Return the paper's graph of a nest."""
    p = nest.problem
    names = [f"L{k}" for k in range(len(nest.loops))]
    first = len(nest.compute)
    compute, write = "compute", "write"
    nesting = list(zip(names[:first], [*names[1:first], compute], strict=True))
    nesting += zip(names[first:], [*names[first + 1 :], write], strict=True)
    flow = [(t.name, compute) for t in p.inputs] + [(compute, "T"), ("T", write)]
    reads: list[tuple[str, TensorAccess]] = [(t.name, t) for t in p.inputs]
    total, steps = ("T", p.output), (*nest.steps, *nest.write_steps)  # T has the output's layout
    strides = [
        (name, tensor, stride)
        for k, (name, (index, step)) in enumerate(zip(names, steps, strict=True))
        for tensor, t in ([*reads, total] if k < first else [total, (p.output.name, p.output)])
        if (stride := t.steps.get(index, 0) * step)
    ]
    return StateGraph(
        tuple((name, str(loop)) for name, loop in zip(names, nest.loops, strict=True)),
        (*(t.name for t in p.inputs), "T", p.output.name),
        (compute, write),
        tuple(nesting),
        (*flow, (write, p.output.name)),
        tuple(strides),
        names[nest.cursor],
    )


def vector(nest: Nest, max_loops: int) -> Vector:
    """Return [max_loops, 20]; rows past the last loop are 0."""
    rows = np.zeros((max_loops, WIDTH), np.float32)
    first, p = len(nest.compute), nest.problem
    steps = (*nest.steps, *nest.write_steps)
    for k, (loop, (index, step)) in enumerate(zip(nest.loops, steps, strict=True)):
        rows[k] = loop_row(p, index, k < first, step, loop.size * step + loop.tail)
    rows[nest.cursor, 0] = 1
    return rows


def loop_row(problem: NestProblem, index: str, compute: bool, step: int, extent: int) -> Vector:
    """Return [20], of a loop over `extent` points, `step` in a trip, that is not at the cursor."""
    row = np.zeros(WIDTH, np.float32)
    row[1], row[2] = divmod(extent, step)
    row[3] = compute
    tensors = (*problem.inputs, problem.output) if compute else (problem.output, problem.output)
    for t in tensors:
        if stride := t.steps.get(index, 0) * step:
            row[4 + min(BINS - 1, (abs(stride) - 1).bit_length())] += 1
    return row


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__, {"graph": "state_graph"})
