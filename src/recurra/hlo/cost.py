"""The operations and bytes of HLO instructions, for a roofline.

Dots and convolutions have XLA's counts; other instructions count one operation per element, or
eight for a transcendental function. A fusion counts the instructions inside, and reads only the
elements of an operand that it slices out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from recurra.hlo.module import HloInstruction, HloModule

FORWARDS = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
_FREE = FORWARDS | {"partition-id", "replica-id", "copy", "reshape", "broadcast", "iota"}
_TRANSCENDENTAL = {
    *("exponential", "log", "tanh", "rsqrt", "sqrt", "divide", "power", "logistic", "sine"),
    *("cosine", "log-plus-one", "exponential-minus-one", "erf", "cbrt", "atan2", "tan"),
}
_FOLDS = {"reduce", "reduce-window", "select-and-scatter", "sort", "scatter"}
_SLICES = {"dynamic-slice", "gather", "slice"}


@dataclass(frozen=True)
class Work:
    """The operations of the matrix unit and of the vector unit."""

    matrix: float = 0.0
    vector: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.matrix + other.matrix, self.vector + other.vector)

    def __mul__(self, times: int) -> Work:
        return Work(self.matrix * times, self.vector * times)


@dataclass
class Costs:
    """The work and memory traffic of a module's instructions."""

    module: HloModule
    _cache: dict[int, Work] = field(default_factory=dict)

    def work(self, computation: int) -> Work:
        """The work of all instructions of a computation."""
        if computation not in self._cache:
            instructions = self.module.computations[computation].instructions.values()
            self._cache[computation] = sum((self.of(x, computation) for x in instructions), Work())
        return self._cache[computation]

    def of(self, instruction: HloInstruction, computation: int) -> Work:
        """The work of one instruction: of a loop for all trips, of a conditional the largest."""
        operands = self.module.computations[computation].instructions
        n = float(instruction.shape.count)
        if instruction.op == "dot":
            left = operands[instruction.operands[0]].shape
            return Work(matrix=2 * n * math.prod(left.dims[d] for d in instruction.contracted))
        if instruction.op == "convolution":
            kernel = operands[instruction.operands[1]].shape
            features = max(1, kernel.dims[instruction.kernel_features])
            return Work(matrix=2 * n * kernel.count / features)
        if instruction.op == "while":
            body, condition = instruction.called[0], instruction.called[1]
            return (self.work(body) + self.work(condition)) * instruction.trips
        if instruction.op == "conditional":
            return max(map(self.work, instruction.called), key=lambda w: (w.matrix, w.vector))
        if instruction.op in ("fusion", "call"):
            return self.work(instruction.called[0])
        if instruction.op == "custom-call":
            return self._custom(instruction, computation)
        if instruction.op in _FREE:
            return Work()
        if instruction.op in _FOLDS:
            return Work(vector=float(operands[instruction.operands[0]].shape.count))
        return Work(vector=n * (8 if instruction.op in _TRANSCENDENTAL else 1))

    def _custom(self, instruction: HloInstruction, computation: int) -> Work:
        operands = self.module.computations[computation].instructions
        n = float(sum(s.count for _, s in instruction.shape.leaves()))
        if ("matmul" in instruction.target or "gemm" in instruction.target.lower()) and len(
            instruction.operands
        ) > 1:
            return Work(matrix=2 * n * operands[instruction.operands[0]].shape.dims[-1])
        return Work(vector=n)

    def reads(self, instruction: HloInstruction, index: int, computation: int) -> int:
        """The bytes that an instruction reads of an array operand."""
        operands = self.module.computations[computation].instructions
        full = operands[instruction.operands[index]].shape.nbytes
        if index == 0 and instruction.op in _SLICES:
            return min(full, instruction.shape.nbytes)
        if index == 0 and instruction.op == "dynamic-update-slice":
            return 0
        if instruction.op not in ("fusion", "call"):
            return full
        inside = self.module.computations[instruction.called[0]]
        parameter = inside.parameters.get(index)
        users = inside.users.get(parameter.id, ()) if parameter else ()
        first = [u for u in users if parameter and u.operands[0] == parameter.id]
        if not users or len(first) < len(users):
            return full
        if all(u.op in _SLICES for u in users):
            return min(full, sum(u.shape.nbytes for u in users))
        return 0 if all(u.op == "dynamic-update-slice" for u in users) else full

    def writes(self, instruction: HloInstruction, computation: int) -> int:
        """The bytes that an instruction writes of its array result."""
        where, update = computation, instruction
        if instruction.op in ("fusion", "call"):
            where, update = instruction.called[0], self._root(instruction.called[0])
        if update.op == "dynamic-update-slice":
            written = self.module.computations[where].instructions[update.operands[1]]
            return written.shape.nbytes
        return instruction.shape.nbytes

    def in_place(self, x: HloInstruction) -> int | None:
        """The operand that an instruction updates in place, if its result is an array."""
        if x.op in ("dynamic-update-slice", "scatter"):
            return 0
        if x.op != "fusion":
            return None
        root = self._root(x.called[0])
        if root.op not in ("dynamic-update-slice", "scatter"):
            return None
        target = self._skip_bitcasts(x.called[0], root.operands[0])
        return target.parameter if target.op == "parameter" else None

    def _root(self, computation: int) -> HloInstruction:
        return self._skip_bitcasts(computation, self.module.computations[computation].root)

    def _skip_bitcasts(self, computation: int, at: int) -> HloInstruction:
        x = self.module.computations[computation].instructions[at]
        while x.op == "bitcast":
            x = self.module.computations[computation].instructions[x.operands[0]]
        return x
