"""The state of a nest as an agent sees it: the graph of LoopTune's figure 5, and its vector form.

The graph has loops, tensors and computations; edges say what is nested in what, how data flows, and
how far apart (elements) the accesses of a loop's consecutive trips are. The vector has 20 numbers
per loop (section 3.3): cursor, size, tail, compute or write, and how many tensors the loop strides
through at distances 2^(b-1) < d <= 2^b, for bins b = 0 .. 15.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recurra.nest.loops import Nest, NestLoop
from recurra.nest.problem import NestProblem, TensorAccess

BINS = 16
WIDTH = 4 + BINS
Vector = NDArray[np.float32]


@dataclass(frozen=True)
class StateGraph:
    """Loops are named L0, L1, ..; tensors have their own names, T is what is being reduced."""

    loops: tuple[tuple[str, str], ...]
    """(name, text)"""
    tensors: tuple[str, ...]
    computations: tuple[str, ...]
    nesting: tuple[tuple[str, str], ...]
    flow: tuple[tuple[str, str], ...]
    strides: tuple[tuple[str, str, int], ...]
    """(loop, tensor, elements between two trips); 0 is left out"""
    cursor: str

    def __str__(self) -> str:
        far: dict[str, list[str]] = {}
        for loop, tensor, stride in self.strides:
            far.setdefault(loop, []).append(f"{tensor} {stride}")
        inside = dict(self.nesting)
        lines = [
            f"{name}: {text} -> {inside[name]}; strides: {', '.join(far.get(name, ['none']))}"
            + ("  <<<" if name == self.cursor else "")
            for name, text in self.loops
        ]
        return "\n".join([*lines, *(f"{a} -> {b}" for a, b in self.flow)])


def graph(nest: Nest) -> StateGraph:
    """The paper's graph of a nest."""
    p = nest.problem
    names = [f"L{k}" for k in range(len(nest.loops))]
    first = len(nest.compute)
    compute, write = "compute", "write"
    nesting = list(zip(names[:first], [*names[1:first], compute], strict=True))
    nesting += zip(names[first:], [*names[first + 1 :], write], strict=True)
    flow = [(t.name, compute) for t in p.inputs] + [(compute, "T"), ("T", write)]
    strides = [
        (name, tensor, stride)
        for name, (_, touched) in zip(names, _touched(nest), strict=True)
        for tensor, stride in touched
        if stride
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
    """[max_loops, 20]; rows of loops that are not there are 0."""
    found = np.zeros((max_loops, WIDTH), np.float32)
    first = len(nest.compute)
    for k, (loop, touched) in enumerate(_touched(nest)):
        found[k, :4] = k == nest.cursor, loop.size, loop.tail, k < first
        for _, stride in touched:
            if stride:
                found[k, 4 + min(BINS - 1, (abs(stride) - 1).bit_length())] += 1
    return found


def loop_row(problem: NestProblem, index: str, compute: bool, step: int, extent: int) -> Vector:
    """[20], of a loop over `extent` points that takes `step` in a trip; the cursor is elsewhere."""
    row = np.zeros(WIDTH, np.float32)
    row[1], row[2] = divmod(extent, step)
    row[3] = compute
    tensors = (*problem.inputs, problem.output) if compute else (problem.output, problem.output)
    for t in tensors:
        if stride := t.steps.get(index, 0) * step:
            row[4 + min(BINS - 1, (abs(stride) - 1).bit_length())] += 1
    return row


def _touched(nest: Nest) -> Iterator[tuple[NestLoop, list[tuple[str, int]]]]:
    """Every loop, with its stride in every tensor that its nest touches; T lies as the output."""
    p = nest.problem
    named: list[tuple[str, TensorAccess]] = [(t.name, t) for t in p.inputs] + [("T", p.output)]
    for loop, (index, step) in zip(nest.compute, nest.steps, strict=True):
        yield loop, [(name, t.steps.get(index, 0) * step) for name, t in named]
    for loop, (index, step) in zip(nest.write, nest.write_steps, strict=True):
        far = p.output.steps.get(index, 0) * step
        yield loop, [("T", far), (p.output.name, far)]
