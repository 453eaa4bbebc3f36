"""Recorded operators → the kernels of a GPU library, by the analytic model of `gpu`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from recurra.window.gpu import BLOCK, TILE, Gpu
from recurra.window.torch.record import RecordedOperator, Shape
from recurra.window.trace import Kernel, Trace


@dataclass(frozen=True)
class OperatorWork:
    """The work of an operator: blocks, operations, and the resources of a block."""

    ctas: int
    flops: float
    threads: int = 256
    registers: int = 32
    shared: int = 0


def lower(name: str, operators: Sequence[RecordedOperator], gpu: Gpu) -> Trace:
    """Return the trace of a recorded program on a GPU."""
    return Trace(name, tuple(_kernel(operator, gpu) for operator in operators))


def _kernel(operator: RecordedOperator, gpu: Gpu) -> Kernel:
    work = _work(operator)
    moved = operator.itemsize * sum(
        math.prod(shape) for shape in (*operator.inputs, *operator.outputs)
    )
    return Kernel(
        name=operator.name,
        ctas=work.ctas,
        threads=work.threads,
        registers=work.registers,
        shared=work.shared,
        us=gpu.block_us(work.ctas, moved, work.flops),
        reads=operator.reads,
        writes=operator.writes,
        host=operator.host,
    )


def _work(operator: RecordedOperator) -> OperatorWork:
    results = max(1, sum(math.prod(shape) for shape in operator.outputs))
    if operator.host:
        return OperatorWork(ctas=1, flops=0, threads=32)
    if "convolution" in operator.name and len(operator.inputs) > 1:
        return _convolution(results, operator.inputs[1])
    if operator.name in ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear"):
        inner = _inner(operator)
        return OperatorWork(-(-results // TILE), 2.0 * results * inner, registers=64, shared=16384)
    elements = max([results, *(math.prod(shape) for shape in operator.inputs)])
    return OperatorWork(ctas=-(-elements // BLOCK), flops=float(elements))


def _convolution(results: int, weight: Shape) -> OperatorWork:
    taps = math.prod(weight[1:])
    if weight[1] == 1:  # one channel a group: memory decides
        return OperatorWork(-(-results // BLOCK), 2.0 * results * taps, registers=40)
    return OperatorWork(-(-results // TILE), 2.0 * results * taps, registers=64, shared=16384)


def _inner(operator: RecordedOperator) -> int:
    """Return the length of the dot products: the last axis of the left matrix."""
    left = operator.inputs[1 if operator.name in ("addmm", "baddbmm") else 0]
    return left[-1] if left else 1
