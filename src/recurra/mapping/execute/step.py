"""One instruction, ready to run: where its operands and outputs are, and what it moves itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from recurra.errors import RecurraError
from recurra.mapping.execute.copier import Transfer
from recurra.mapping.execute.memories import Memory, Room, SlowMemory
from recurra.mapping.execute.workload import Operation, Workload

Moved = tuple[Room, int]  # and its place in slow memory
Silent = Callable[[], AbstractContextManager[None]]  # within it slow memory is the caller's


@dataclass
class WorkloadStep:
    """A step: it reads operands outside fast memory before it computes, and writes others after."""

    program: str
    operation: Operation
    operands: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    rooms: Mapping[int, Room] = field(default_factory=dict)  # by tensor
    reads: list[Moved] = field(default_factory=list)
    writes: list[Moved] = field(default_factory=list)
    copies: list[Transfer] = field(default_factory=list)  # that may begin with it

    def find(self, workload: Workload, memory: Memory, rooms: Mapping[int, Room]) -> None:
        """Bind the step's tensors to these rooms."""
        x, tensors, self.rooms = self.operation, workload.tensors, rooms
        self.operands = [memory.over(rooms[k], tensors[k]) for k in x.reads]
        self.outputs = [memory.over(rooms[k], tensors[k]) for k in x.writes]

    def run(self, slow: SlowMemory, silent: Silent = nullcontext) -> float:
        """Seconds of computing, without those of moving."""
        _move(self.reads, slow.read, silent)
        there = perf_counter()
        self._compute()
        seconds = perf_counter() - there
        _move(self.writes, slow.write, silent)
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


def _move(moved: list[Moved], move: Callable[[Room, int], None], silent: Silent) -> None:
    if moved:
        with silent():
            for room, at in moved:
                move(room, at)
