"""Runs a workload under a mapping: fast memory is one block, say of RAM, slow memory a file.

What is not in fast memory is read into a bounce buffer, and written from it, by the instruction
itself, which waits for that: it is what it gains where it is in fast memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from recurra.mapping.execute.copier import Copier, Transfer
from recurra.mapping.execute.layout import bounce_places, slots, uses
from recurra.mapping.execute.memories import PAGE, Memory, Room, SlowMemory
from recurra.mapping.execute.ram import Ram
from recurra.mapping.execute.step import WorkloadStep
from recurra.mapping.execute.workload import Array, Workload
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Problem, ProblemError, Solution, copy_steps

RAM = Ram()


@dataclass(frozen=True)
class Times:
    """Seconds of one run, by instruction: waiting for copies, moving what is outside, computing."""

    waited: tuple[float, ...]  # before each instruction, and after the last one
    moved: tuple[float, ...]
    computed: tuple[float, ...]
    total: float

    def __str__(self) -> str:
        return (
            f"{self.total * 1e3:,.1f} ms: {sum(self.computed) * 1e3:,.1f} computing, "
            f"{sum(self.moved) * 1e3:,.1f} moving, {sum(self.waited) * 1e3:,.1f} waiting"
        )


class PreparedWorkload:
    """A workload ready to run, as often as one likes, until it is closed.

    `problem` comes from `problem_of`, whatever the prices. Raises `InvalidSolution` for a mapping
    that does not hold, `ProblemError` for one that cannot be run, `RecurraError` for a memory that
    is too small. Those of one workload may share what is slow, one after the other: two files of
    one disk need not be equally fast.
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
        self.arena = memory.room(problem.fast_size)[
            : problem.fast_size
        ]  # all there is of fast memory
        self._bounced = self._bounces()
        self.bounce = memory.room(max(at[-1] for at in self._bounced))
        small = [k for k in range(len(workload.tensors)) if not workload.placed(k)]
        self.beside = {k: memory.room(workload.tensors[k].nbytes) for k in small}
        self.slots, size = slots(workload)
        self._steps = [WorkloadStep(workload.name, x) for x in workload.operations]
        for t in range(problem.steps):
            self._prepare(t)
        self._shares = slow is not None
        self.slow = memory.slow(size) if slow is None else slow
        try:
            self._give(list(workload.given))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PreparedWorkload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the slow memory back, if it is nobody else's."""
        if not self._shares:
            self.slow.close()

    def run(self) -> Times:
        """Once, from the same start; the results are in slow memory then.

        Raises `RecurraError` if the slow memory fails, or an instruction does.
        """
        self._give([k for k in self.workload.given if self._changes(k)])
        waited, moved, computed = list[float](), list[float](), list[float]()
        with Copier(self.slow) as copier:
            start = now = perf_counter()
            for t, step in enumerate(self._steps):
                copier.wait(t)
                ready = perf_counter()
                copier.add(step.copies)
                computed.append(step.run(self.slow, copier.silent))
                waited.append(ready - now)
                now = perf_counter()
                moved.append(now - ready - computed[-1])
            copier.wait(len(self._steps))
            end = perf_counter()
        return Times((*waited, end - now), tuple(moved), tuple(computed), end - start)

    def results(self) -> tuple[Array, ...]:
        """The results of the last run, read from slow memory."""
        found: list[Array] = []
        for k in self.workload.results:
            tensor = self.workload.tensors[k]
            room = self.beside.get(self.workload.storage[k])
            if room is None:
                room = self.memory.room(tensor.nbytes)
                self.slow.read(room, self.slots[k])
            found.append(tensor.over(self.memory.get(room)))
        return tuple(found)

    def _changes(self, tensor: int) -> bool:
        return not self.workload.placed(tensor) or tensor in self.workload.shared

    def _give(self, tensors: list[int]) -> None:
        """Writes what is there before the program to where it is expected."""
        for k in tensors:
            room = self.beside.get(k)
            tensor = self.workload.tensors[k]
            given = room if room is not None else self.memory.room(tensor.nbytes)
            self.memory.put(tensor.bytes_of(self.workload.given[k]), given)
            if room is None:
                self.slow.write(given, self.slots[k])

    def _expect_pages(self) -> None:
        for i, p in enumerate(self.solution.placements):
            if p is not None and p.offset % PAGE:
                raise ProblemError(
                    f"{self.problem.name}: buffer {i} lies at address {p.offset}",
                    facts=f"what comes from a disk begins at a multiple of {PAGE} B",
                )

    def _bounces(self) -> list[dict[int, int]]:
        inside = [p is not None for p in self.solution.placements]
        first = [uses[0] if uses else 0 for uses in self.problem.uses]
        return [bounce_places(self.workload, t, i, inside) for t, i in enumerate(first)]

    def _prepare(self, time: int) -> None:
        """Prepare a step: the places of its operands, its moves, and copies that begin there."""
        x, step = self.workload.operations[time], self._steps[time]
        rooms: dict[int, Room] = {}
        here = uses(self.workload, time)
        for i, (k, out) in zip(self.problem.uses[time], here, strict=True):
            rooms[k] = self._placed(i, k, out, step)
        for k in (*x.reads, *x.writes):
            if not self.workload.placed(k):
                rooms[k] = self.beside[self.workload.storage[k]]
        step.find(self.workload, self.memory, rooms)

    def _placed(self, index: int, tensor: int, out: bool, step: WorkloadStep) -> Room:
        b, p = self.problem.buffers[index], self.solution.placements[index]
        if p is None:
            at = self._bounced[b.target_time][self.workload.storage[tensor]]
            room = self.bounce[at : at + b.size]
        else:
            room = self.arena[p.offset : p.offset + b.size]
        during = () if p is None else copy_steps(b, p)
        if during:
            copy = Transfer(during[-1], index, room, self.slots[tensor], out)
            self._steps[during[0]].copies.append(copy)
        elif p is None or p.copied:  # also what is copied in no time
            (step.writes if out else step.reads).append((room, self.slots[tensor]))
        return room


def execute(
    workload: Workload,
    problem: Problem,
    solution: Solution,
    memory: Memory = RAM,
) -> tuple[tuple[Array, ...], Times]:
    """The results of one run, and its times."""
    with PreparedWorkload(workload, problem, solution, memory) as execution:
        times = execution.run()
        return execution.results(), times
