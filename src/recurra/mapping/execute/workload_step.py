"""One instruction, ready to run: the arrays of its operands and outputs, and its own moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from recurra.errors import RecurraError
from recurra.mapping.execute.copier import Transfer
from recurra.mapping.execute.memories import ByteBuffer, Memory, SlowMemory
from recurra.mapping.execute.workload import Operation, Workload

Move = tuple[ByteBuffer, int]  # a block, and its address in slow memory
Pause = Callable[[], AbstractContextManager[None]]  # inside, the copy engine rests


@dataclass
class WorkloadStep:
    """A step that reads operands from slow memory, computes, and writes outputs to slow memory."""

    program: str
    operation: Operation
    operands: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    blocks: Mapping[int, ByteBuffer] = field(default_factory=dict)  # by tensor
    reads: list[Move] = field(default_factory=list)
    writes: list[Move] = field(default_factory=list)
    copies: list[Transfer] = field(default_factory=list)  # that may begin in this step

    def bind(self, workload: Workload, memory: Memory, blocks: Mapping[int, ByteBuffer]) -> None:
        """Bind the step's tensors to these blocks."""
        x, tensors, self.blocks = self.operation, workload.tensors, blocks
        self.operands = [memory.view_as(blocks[k], tensors[k]) for k in x.reads]
        self.outputs = [memory.view_as(blocks[k], tensors[k]) for k in x.writes]

    def run(self, slow: SlowMemory, pause: Pause = nullcontext) -> float:
        """Run the step; return the seconds of computing, without those of moving."""
        _move(self.reads, slow.read, pause)
        start = perf_counter()
        self._compute()
        seconds = perf_counter() - start
        _move(self.writes, slow.write, pause)
        return seconds

    def _compute(self) -> None:
        x = self.operation
        try:
            x.compute(self.operands, self.outputs)
        except Exception as error:
            raise RecurraError(
                f"{self.program}: its instruction {x.name} failed",
                facts=f"{type(error).__name__}: {error}",
            ) from error


def _move(moves: list[Move], move: Callable[[ByteBuffer, int], None], pause: Pause) -> None:
    if moves:
        with pause():
            for block, at in moves:
                move(block, at)
