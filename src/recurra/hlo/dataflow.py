"""A scheduled computation → its steps, and the values that they read and write.

A value is what XLA calls a logical buffer: an array that one instruction makes. Tuples and bitcasts
hand values on. A while loop is one step: what it hands on unchanged it reads, what it carries it
updates in place, and what lives only within its body is traffic of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recurra.hlo.cost import Costs, Work
from recurra.hlo.module import HloInstruction, HloModule, Path

Leaves = Mapping[Path, int]  # which value is at which leaf of an instruction's result


@dataclass(frozen=True)
class FlowValue:
    """An array: its bytes, the step that makes it (-1: none), and where XLA names it."""

    nbytes: int
    step: int
    instruction: int
    leaf: Path


@dataclass
class FlowStep:
    """One instruction: bytes that it moves of each value, and of what nobody else sees."""

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
        """A value more."""
        self.values.append(FlowValue(nbytes, step, instruction.id, leaf))
        return len(self.values) - 1

    def leaves(self, instruction: int) -> Leaves:
        """The leaves of an instruction's result."""
        return self._at[instruction]

    def handed_on(self, instruction: HloInstruction) -> Leaves | None:
        """The leaves of an instruction that computes nothing."""
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
        """Adds what one instruction does."""
        leaves = self.handed_on(instruction)
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
        read, written = _traffic(body)
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
    """Steps and values of a computation."""
    found = ValueFlow(module, computation, costs)
    c = module.computations[computation]
    for x in c.instructions.values():
        found.visit(x)
    found.result = found.leaves(c.root)
    return found


def _traffic(body: ValueFlow) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes read and written of each value in one iteration."""
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    for s in body.steps:
        for v, n in s.reads.items():
            read[v] = read.get(v, 0) + n
        written.update(s.writes)
    return read, written


def heaviest_loop(module: HloModule, computation: int, costs: Costs) -> HloInstruction | None:
    """The while loop of a computation in which most work is done."""
    loops = [x for x in module.computations[computation].instructions.values() if x.op == "while"]
    return max(loops, key=lambda x: _weight(costs, x, computation), default=None)


def _weight(costs: Costs, instruction: HloInstruction, computation: int) -> float:
    work = costs.of(instruction, computation)
    return work.matrix + work.vector
