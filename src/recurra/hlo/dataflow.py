"""The steps of a scheduled computation, and the values that they read and write.

A value is a logical buffer of XLA: an array that one instruction computes. Tuples and bitcasts
forward values. A while loop is one step: it reads the values that it forwards unchanged, updates
its loop-carried values in place, and values that live only in its body are its local traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from recurra.hlo.cost import Costs, Work
from recurra.hlo.module import HloInstruction, HloModule, Path

Leaves = Mapping[Path, int]  # the value at each leaf of an instruction's result


@dataclass(frozen=True)
class FlowValue:
    """An array: its bytes, the step that computes it (-1: none), and XLA's name for it."""

    nbytes: int
    step: int
    instruction: int
    leaf: Path


@dataclass
class FlowStep:
    """One instruction: the bytes that it reads and writes of each value, and its local traffic."""

    name: str
    op: str
    work: Work
    reads: dict[int, int] = field(default_factory=dict)  # value -> bytes
    writes: dict[int, int] = field(default_factory=dict)
    local: int = 0
    in_place: list[tuple[int, int]] = field(default_factory=list)  # old value, new value
    instruction: int = -1


@dataclass
class ValueFlow:
    """The flow of values through a computation."""

    module: HloModule
    computation: int
    costs: Costs
    values: list[FlowValue] = field(default_factory=list)
    steps: list[FlowStep] = field(default_factory=list)
    parameters: dict[int, Leaves] = field(default_factory=dict)
    result: Leaves = field(default_factory=dict)
    _at: dict[int, Leaves] = field(default_factory=dict)

    def new(self, nbytes: int, instruction: HloInstruction, leaf: Path, step: int) -> int:
        """Add a value; return its number."""
        self.values.append(FlowValue(nbytes, step, instruction.id, leaf))
        return len(self.values) - 1

    def leaves(self, instruction: int) -> Leaves:
        """The leaves of an instruction's result."""
        return self._at[instruction]

    def forwarded(self, instruction: HloInstruction) -> Leaves | None:
        """The leaves of an instruction that computes nothing; None for others."""
        if instruction.op in ("parameter", "constant"):
            return {
                p: self.new(s.nbytes, instruction, p, -1) for p, s in instruction.shape.leaves()
            }
        if instruction.op == "tuple":
            return {
                (k, *p): v
                for k, o in enumerate(instruction.operands)
                for p, v in self._at[o].items()
            }
        if instruction.op == "get-tuple-element":
            return {
                p[1:]: v
                for p, v in self._at[instruction.operands[0]].items()
                if p[:1] == (instruction.index,)
            }
        if instruction.op in ("bitcast", "after-all"):
            return self._at[instruction.operands[0]] if instruction.operands else {}
        return None

    def visit(self, instruction: HloInstruction) -> None:
        """Add one instruction, as a step unless it only forwards values."""
        leaves = self.forwarded(instruction)
        if leaves is None:
            step = FlowStep(
                instruction.name,
                instruction.op,
                self.costs.of(instruction, self.computation),
                instruction=instruction.id,
            )
            leaves = (self._loop if instruction.op == "while" else self._plain)(instruction, step)
            self.steps.append(step)
        if instruction.op == "parameter":
            self.parameters[instruction.parameter] = leaves
        self._at[instruction.id] = leaves

    def _plain(self, instruction: HloInstruction, step: FlowStep) -> Leaves:
        for k, o in enumerate(instruction.operands):
            for p, v in self._at[o].items():
                whole = self.values[v].nbytes
                nbytes = whole if p else self.costs.reads(instruction, k, self.computation)
                step.reads[v] = step.reads.get(v, 0) + nbytes
        leaves: dict[Path, int] = {}
        for p, s in instruction.shape.leaves():
            leaves[p] = self.new(s.nbytes, instruction, p, len(self.steps))
            nbytes = s.nbytes if p else self.costs.writes(instruction, self.computation)
            step.writes[leaves[p]] = nbytes
        k = self.costs.in_place(instruction)
        old = None if k is None else self._at[instruction.operands[k]].get(())
        if old is not None and () in leaves:
            step.in_place.append((old, leaves[()]))
        return leaves

    def _loop(self, instruction: HloInstruction, step: FlowStep) -> Leaves:
        body = flow(self.module, instruction.called[0], self.costs)
        inside = body.parameters.get(0, {})
        read, written = Counter[int](), dict[int, int]()  # bytes of each value in one iteration
        for s in body.steps:
            read.update(s.reads)
            written.update(s.writes)
        leaves: dict[Path, int] = {}
        for p, v in self._at[instruction.operands[0]].items():
            moved = instruction.trips * read.pop(inside[p], 0) if p in inside else 0
            step.reads[v] = step.reads.get(v, 0) + moved
            if body.result.get(p) == inside.get(p):
                leaves[p] = v
                continue
            leaves[p] = self.new(self.values[v].nbytes, instruction, p, len(self.steps))
            step.writes[leaves[p]] = instruction.trips * written.pop(body.result[p], 0)
            step.in_place.append((v, leaves[p]))
        local = sum(read.values()) + sum(written.values()) + sum(s.local for s in body.steps)
        step.local = instruction.trips * local
        return leaves


def flow(module: HloModule, computation: int, costs: Costs) -> ValueFlow:
    """Return the steps and values of a computation."""
    result = ValueFlow(module, computation, costs)
    c = module.computations[computation]
    for x in c.instructions.values():
        result.visit(x)
    result.result = result.leaves(c.root)
    return result


def heaviest_loop(module: HloModule, computation: int, costs: Costs) -> HloInstruction | None:
    """Return the while loop of a computation with the most work, if it has any loop."""

    def operations(loop: HloInstruction) -> float:
        work = costs.of(loop, computation)
        return work.matrix + work.vector

    loops = [x for x in module.computations[computation].instructions.values() if x.op == "while"]
    return max(loops, key=operations, default=None)
