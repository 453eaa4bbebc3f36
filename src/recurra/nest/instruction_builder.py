"""InstructionBuilder: the instructions of a program so far, and the registers of their operands."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Literal

from recurra.errors import ScheduleError
from recurra.nest.loops import Nest
from recurra.nest.program import MASKS, Constant, Instruction, NestCode
from recurra.nest.register_scopes import RegisterScopes
from recurra.nest.target import VectorTarget

Operand = tuple[int, int, int]
"""(tensor, byte offset, width)"""


class InstructionBuilder(RegisterScopes):
    """The code so far, its constants, and a basic block of multiply-adds without registers yet."""

    def __init__(self, nest: Nest, target: VectorTarget) -> None:
        super().__init__(nest, target)
        self.out = len(self.problem.inputs)
        self.code: list[Instruction] = []
        self.widths: list[int] = []
        self.pool: list[Constant] = []
        self.spare: list[int] = []
        self.block: list[tuple[int, tuple[Operand, ...], int]] = []

    def program(self) -> NestCode:
        return NestCode(
            self.target.name,
            self.problem.dtype,
            self.lanes,
            len(self.tensors),
            tuple(self.code),
            tuple(self.widths),
            tuple(self.pool),
            tuple(b.size for b in self.buffers),
        )

    def shift(self, index: str, points: int, level: int) -> None:
        """Move the pointers that loops from `level` inwards use by so many points of an index."""
        unused = {b.tensor if b.level <= level else b.pointer for b in self.buffers}
        for t, step in enumerate(self.steps[index]):
            if t not in unused:
                self.move(t, step * points)

    def move(self, tensor: int, distance: int) -> None:
        if not distance:
            return
        if self.code and self.code[-1][:2] == ("move", tensor):
            distance += self.code.pop()[2]
        if distance:
            self.emit("move", tensor, distance)

    def emit(self, *instruction: str | int) -> None:
        self.code.append(instruction)

    def neutral(self, register: int) -> None:
        if self.problem.combine == "sum":
            self.emit("zero", register)
        else:
            self.emit("constant", register, self.slot("value", -math.inf))

    def post(self, register: int, tmp: int) -> None:
        bits = 8 * self.item
        match self.problem.post:
            case None:
                pass
            case "relu":
                self.emit("relu", register, tmp)
            case "square":
                self.emit("square", register)
            case "abs":
                self.emit("abs", register, self.slot("bits", 2 ** (bits - 1) - 1))
            case "negate":
                self.emit("negate", register, self.slot("bits", 2 ** (bits - 1)))

    # Register allocation: for one basic block at a time

    def flush(self) -> None:
        """Emit the multiply-adds since the last jump.

        Operands stay loaded until their last use; if registers run out, the one is evicted whose
        next use is farthest away (Belady, 1966). Nothing is stored: it is loaded once more.
        """
        block, self.block = self.block, []
        uses: dict[Operand, list[int]] = {}
        for place in range(len(block) - 1, -1, -1):
            for operand in block[place][1]:
                uses.setdefault(operand, []).append(place)
        loaded: dict[Operand, int] = {}
        free = deque(self.spare)
        for r, operands, mask in block:
            for operand in operands:
                if operand not in loaded:
                    x = loaded[operand] = self.allocate(free, loaded, uses, operands)
                    self.load(x, *operand)
                uses[operand].pop()
            registers = [loaded[operand] for operand in operands]
            if len(registers) > (2 if self.problem.combine == "sum" else 1):
                x = self.allocate(free, loaded, uses, operands)
                free.append(x)
                registers = self.product(registers, x)
            self.combine(r, registers, mask)
            for operand in operands:
                if not uses[operand]:
                    free.append(loaded.pop(operand))

    def allocate(
        self,
        free: deque[int],
        loaded: dict[Operand, int],
        uses: Mapping[Operand, list[int]],
        busy: tuple[Operand, ...],
    ) -> int:
        """Return a free register, or that of an operand which is evicted."""
        if free:
            return free.popleft()
        return loaded.pop(max((o for o in loaded if o not in busy), key=lambda o: uses[o][-1]))

    def product(self, operands: list[int], register: int) -> list[int]:
        """Multiply into a register until one operand is left, or two where a sum adds them."""
        left = 2 if self.problem.combine == "sum" else 1
        first, second, *rest = operands
        self.emit("mul", register, first, second)
        while 1 + len(rest) > left:
            self.emit("mul", register, register, rest.pop(0))
        return [register, *rest]

    def combine(self, register: int, operands: list[int], mask: int) -> None:
        if len(operands) == 2:
            self.emit("fma", register, *operands, mask)
        else:
            word = "add" if self.problem.combine == "sum" else "max"
            self.emit(word, register, *operands, mask)

    def load(self, register: int, tensor: int, offset: int, width: int) -> None:
        step = self.lane_steps[tensor]
        if tensor == self.out and not step:
            step = self.item  # an index of size 1
        self.load_strided(register, tensor, offset, width, step)

    def load_strided(
        self, register: int, tensor: int, offset: int, width: int, stride: int
    ) -> None:
        """Load lanes that are `stride` bytes apart; bf16 becomes f32."""
        if self.items[tensor] == 2:
            if stride == 0:
                self.emit("splat16", register, tensor, offset)
            elif stride == 2:
                self.emit("load16", register, tensor, offset, self.mask(width), width)
            else:
                self.emit("gather16", register, tensor, offset, width, stride)
        elif stride == 0:
            self.emit("splat", register, tensor, offset)
        elif stride == self.item:
            self.emit("load", register, tensor, offset, self.mask(width))
        else:
            self.indexed("gather", register, tensor, offset, width, stride)

    def store(self, register: int, offset: int, width: int) -> None:
        step = self.lane_steps[self.out] or self.item
        if step == self.item:
            self.emit("store", register, self.out, offset, self.mask(width))
        else:
            self.indexed("scatter", register, self.out, offset, width, step)

    def indexed(
        self, word: str, register: int, tensor: int, offset: int, width: int, stride: int
    ) -> None:
        if abs(stride) * self.lanes >= 2**31:
            raise ScheduleError("lanes are too far apart", facts=f"{stride} bytes")
        slot = self.slot("offsets", stride // self.item)
        self.emit(word, register, tensor, offset, self.mask(width), slot, width, stride)

    def mask(self, width: int) -> int:
        if width == self.lanes:
            return 0
        if width not in self.widths:
            if len(self.widths) == MASKS:
                raise ScheduleError(
                    "this nest has too many different tails",
                    facts=f"{self.lane_index} ends in {', '.join(map(str, [*self.widths, width]))} "
                    f"of {self.lanes} lanes; there are {MASKS} masks",
                    hint=f"split {self.lane_index} less often",
                )
            self.widths.append(width)
        return self.widths.index(width) + 1

    def slot(self, kind: Literal["offsets", "value", "bits"], value: float) -> int:
        constant = Constant(kind, value)
        if constant not in self.pool:
            self.pool.append(constant)
        return self.pool.index(constant)
