"""Run a workload under a mapping: fast memory is one block, say of RAM, slow memory a file.

An instruction reads its operands outside fast memory into a bounce buffer, and writes its outputs
from there. It waits for these moves, which is the time that a buffer in fast memory saves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from recurra.errors import RecurraError
from recurra.mapping.execute.copier import Copier, Transfer
from recurra.mapping.execute.memories import PAGE, ByteBuffer, Memory, SlowMemory
from recurra.mapping.execute.ram import Ram
from recurra.mapping.execute.workload import Array, Operation, Workload
from recurra.mapping.execute.workload_problem import addresses, slow_addresses, uses
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Problem, ProblemError, Solution, copy_steps

RAM = Ram()
Move = tuple[ByteBuffer, int]  # a block, and its address in slow memory
Pause = Callable[[], AbstractContextManager[None]]  # inside, the copy engine rests


@dataclass(frozen=True)
class Times:
    """Seconds of one run, by instruction: waiting for copies, its own moves, computing."""

    waited: tuple[float, ...]  # before each instruction, and after the last one
    moved: tuple[float, ...]
    computed: tuple[float, ...]
    total: float

    def __str__(self) -> str:
        return (
            f"{self.total * 1e3:,.1f} ms: {sum(self.computed) * 1e3:,.1f} computing, "
            f"{sum(self.moved) * 1e3:,.1f} moving, {sum(self.waited) * 1e3:,.1f} waiting"
        )


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


class PreparedWorkload:
    """A workload that can run many times under one mapping, until it is closed.

    `problem` comes from `problem_of`, with any prices. Several prepared workloads may use one slow
    memory in turns: two files of one disk need not be equally fast. Raises `InvalidSolution` for an
    invalid mapping, `ProblemError` for one that cannot be run, and `RecurraError` if a memory is
    too small.
    """

    def __init__(
        self,
        workload: Workload,
        problem: Problem,
        solution: Solution,
        memory: Memory = RAM,
        slow: SlowMemory | None = None,
    ) -> None:
        validate(problem, solution)
        self.workload, self.problem, self.solution = workload, problem, solution
        self.memory = memory
        self._expect_pages()
        self.arena = memory.allocate(problem.fast_size)[: problem.fast_size]
        self._bounce_addresses, sizes = zip(*map(self._bounces, range(problem.steps)), strict=True)
        self.bounce = memory.allocate(max(sizes))
        small = [k for k in range(len(workload.tensors)) if not workload.is_placed(k)]
        self.small = {k: memory.allocate(workload.tensors[k].nbytes) for k in small}
        self.slow_addresses, size = slow_addresses(workload)
        self._steps = [WorkloadStep(workload.name, x) for x in workload.operations]
        for t in range(problem.steps):
            self._prepare(t)
        self._shares = slow is not None
        self.slow = memory.slow(size) if slow is None else slow
        try:
            self._write_inputs(list(workload.inputs))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PreparedWorkload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the slow memory, unless it was passed in."""
        if not self._shares:
            self.slow.close()

    def run(self) -> Times:
        """Run once from the inputs, and leave the results in slow memory.

        Raises `RecurraError` if the slow memory or an instruction fails.
        """
        work = self.workload
        self._write_inputs([k for k in work.inputs if not work.is_placed(k) or k in work.shared])
        waited, moved, computed = list[float](), list[float](), list[float]()
        with Copier(self.slow) as copier:
            start = now = perf_counter()
            for t, step in enumerate(self._steps):
                copier.wait(t)
                ready = perf_counter()
                copier.add(step.copies)
                computed.append(step.run(self.slow, copier.pause))
                waited.append(ready - now)
                now = perf_counter()
                moved.append(now - ready - computed[-1])
            copier.wait(len(self._steps))
            end = perf_counter()
        return Times((*waited, end - now), tuple(moved), tuple(computed), end - start)

    def results(self) -> tuple[Array, ...]:
        """The results of the last run, read from slow memory."""
        results: list[Array] = []
        for k in self.workload.results:
            tensor = self.workload.tensors[k]
            block = self.small.get(self.workload.storage[k])
            if block is None:
                block = self.memory.allocate(tensor.nbytes)
                self.slow.read(block, self.slow_addresses[k])
            results.append(tensor.view_as(self.memory.get(block)))
        return tuple(results)

    def _write_inputs(self, tensors: list[int]) -> None:
        for k in tensors:
            tensor = self.workload.tensors[k]
            block = self.small[k] if k in self.small else self.memory.allocate(tensor.nbytes)
            self.memory.put(tensor.bytes_of(self.workload.inputs[k]), block)
            if k not in self.small:
                self.slow.write(block, self.slow_addresses[k])

    def _expect_pages(self) -> None:
        for i, p in enumerate(self.solution.placements):
            if p is not None and p.offset % PAGE:
                raise ProblemError(
                    f"{self.problem.name}: buffer {i} lies at address {p.offset}",
                    facts=f"what comes from a disk begins at a multiple of {PAGE} B",
                )

    def _bounces(self, step: int) -> tuple[dict[int, int], int]:
        """Assign addresses in the bounce buffer to the step's tensors outside fast memory."""
        pairs = zip(self.problem.uses[step], uses(self.workload, step), strict=True)
        outside = [k for i, (k, _) in pairs if self.solution.placements[i] is None]
        return addresses(self.workload, outside)

    def _prepare(self, time: int) -> None:
        """Find the blocks of a step's tensors, its own moves, and the copies that begin there."""
        x, step = self.workload.operations[time], self._steps[time]
        blocks: dict[int, ByteBuffer] = {}
        here = uses(self.workload, time)
        for i, (k, out) in zip(self.problem.uses[time], here, strict=True):
            blocks[k] = self._placed(i, k, out, step)
        for k in (*x.reads, *x.writes):
            if not self.workload.is_placed(k):
                blocks[k] = self.small[self.workload.storage[k]]
        step.bind(self.workload, self.memory, blocks)

    def _placed(self, index: int, tensor: int, out: bool, step: WorkloadStep) -> ByteBuffer:
        b, p = self.problem.buffers[index], self.solution.placements[index]
        if p is None:
            at = self._bounce_addresses[b.target_time][tensor]
            block = self.bounce[at : at + b.size]
        else:
            block = self.arena[p.offset : p.offset + b.size]
        during = () if p is None else copy_steps(b, p)
        if during:
            copy = Transfer(during[-1], index, block, self.slow_addresses[tensor], out)
            self._steps[during[0]].copies.append(copy)
        elif p is None or p.copied:  # also a copy that takes no step
            (step.writes if out else step.reads).append((block, self.slow_addresses[tensor]))
        return block


def execute(
    workload: Workload,
    problem: Problem,
    solution: Solution,
    memory: Memory = RAM,
) -> tuple[tuple[Array, ...], Times]:
    """Run a workload once; return its results and times."""
    with PreparedWorkload(workload, problem, solution, memory) as execution:
        times = execution.run()
        return execution.results(), times


def _move(moves: list[Move], move: Callable[[ByteBuffer, int], None], pause: Pause) -> None:
    if moves:
        with pause():
            for block, at in moves:
                move(block, at)
