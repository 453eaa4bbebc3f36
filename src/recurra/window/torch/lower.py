"""Operators → the kernels that a GPU library would launch for them: an analytic model.

One kernel per operator. Blocks cover tiles of the result, as usual ones do; a block's time is a
floor of latency plus its bytes and operations at one multiprocessor's share of what the GPU can do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from recurra.window.gpu import Gpu
from recurra.window.kernel import Kernel, Trace
from recurra.window.torch.record import Operator, Shape

FLOOR = 2.5  # µs: a block that does next to nothing
BLOCK = 1024  # results of a block of an elementwise kernel
TILE = 64 * 32  # results of a block of a matrix product


@dataclass(frozen=True)
class Work:
    """What an operator amounts to: blocks, operations, and what a block holds."""

    ctas: int
    flops: float
    threads: int = 256
    registers: int = 32
    shared: int = 0


def lower(name: str, operators: Sequence[Operator], gpu: Gpu) -> Trace:
    """The trace of a recorded program on a GPU."""
    return Trace(name, tuple(_kernel(operator, gpu) for operator in operators))


def _kernel(operator: Operator, gpu: Gpu) -> Kernel:
    work = _work(operator)
    moved = operator.itemsize * sum(
        math.prod(shape) for shape in (*operator.inputs, *operator.outputs)
    )
    # 1 GB/s is 10³ bytes per µs, 1 TFLOP/s is 10⁶ operations per µs; each of `sms` has its share.
    us = FLOOR + moved / work.ctas / (gpu.gbs * 1e3 / gpu.sms)
    us += work.flops / work.ctas / (gpu.tflops * 1e6 / gpu.sms)
    return Kernel(
        name=operator.name,
        ctas=work.ctas,
        threads=work.threads,
        registers=work.registers,
        shared=work.shared,
        us=round(us, 3),
        reads=operator.reads,
        writes=operator.writes,
        host=operator.host,
    )


def _work(operator: Operator) -> Work:
    results = max(1, sum(math.prod(shape) for shape in operator.outputs))
    if operator.host:
        return Work(ctas=1, flops=0, threads=32)
    if "convolution" in operator.name and len(operator.inputs) > 1:
        return _convolution(results, operator.inputs[1])
    if operator.name in ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear"):
        inner = _inner(operator)
        return Work(-(-results // TILE), 2.0 * results * inner, registers=64, shared=16384)
    taken = max([results, *(math.prod(shape) for shape in operator.inputs)])
    return Work(ctas=-(-taken // BLOCK), flops=float(taken))


def _convolution(results: int, weight: Shape) -> Work:
    taps = math.prod(weight[1:])
    if weight[1] == 1:  # one channel a group: memory decides
        return Work(-(-results // BLOCK), 2.0 * results * taps, registers=40)
    return Work(-(-results // TILE), 2.0 * results * taps, registers=64, shared=16384)


def _inner(operator: Operator) -> int:
    """The length of the dot products: the last axis of the left matrix."""
    left = operator.inputs[1 if operator.name in ("addmm", "baddbmm") else 0]
    return left[-1] if left else 1
