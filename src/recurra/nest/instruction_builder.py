"""Emission: instructions as they are made, and the registers that operands get."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Literal

from recurra.errors import ScheduleError
from recurra.nest.loops import Nest
from recurra.nest.program import MASKS, Constant, Instruction, NestCode
from recurra.nest.register_scopes import Scopes
from recurra.nest.target import VectorTarget

Operand = tuple[int, int, int]
"""(tensor, byte offset, width)"""


class Emission(Scopes):
    """The code so far, its constants, and the block of multiply-adds that waits for registers."""

    def __init__(self, nest: Nest, target: VectorTarget) -> None:
        super().__init__(nest, target)
        self.out = len(self.problem.inputs)
        self.code: list[Instruction] = []
        self.widths: list[int] = []
        self.pool: list[Constant] = []
        self.spare: list[int] = []
        self.block: list[tuple[int, tuple[Operand, ...], int]] = []

    def program(self) -> NestCode:
        """The program that has been emitted."""
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
        """Moves the pointers that loops from `level` inwards use."""
        still = {b.tensor if b.level <= level else b.pointer for b in self.buffers}
        for t, step in enumerate(self.steps[index]):
            if t not in still:
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
                return
            case "relu":
                self.emit("relu", register, tmp)
            case "square":
                self.emit("square", register)
            case "abs":
                self.emit("abs", register, self.slot("bits", 2 ** (bits - 1) - 1))
            case "negate":
                self.emit("negate", register, self.slot("bits", 2 ** (bits - 1)))

    # Operands: which registers they get is decided when a block of straight code is known

    def flush(self) -> None:
        """Emits the multiply-adds that have come together since the last jump.

        What is loaded stays until its last use; if registers run out, the operand goes whose next
        use is farthest away (Belady, 1966). Nothing is stored, so going costs one more load.
        """
        block, self.block = self.block, []
        uses: dict[Operand, list[int]] = {}
        for place in range(len(block) - 1, -1, -1):
            for operand in block[place][1]:
                uses.setdefault(operand, []).append(place)
        held: dict[Operand, int] = {}
        free = deque(self.spare)
        for r, operands, mask in block:
            for operand in operands:
                if operand not in held:
                    x = held[operand] = self.free(free, held, uses, operands)
                    self.read(x, *operand)
                uses[operand].pop()
            registers = [held[operand] for operand in operands]
            if len(registers) > (2 if self.problem.combine == "sum" else 1):
                x = self.free(free, held, uses, operands)
                free.append(x)
                registers = self.product(registers, x)
            self.combine(r, registers, mask)
            for operand in operands:
                if not uses[operand]:
                    free.append(held.pop(operand))

    def free(
        self,
        free: deque[int],
        held: dict[Operand, int],
        uses: Mapping[Operand, list[int]],
        busy: tuple[Operand, ...],
    ) -> int:
        """A register for something new."""
        if free:
            return free.popleft()
        return held.pop(max((o for o in held if o not in busy), key=lambda o: uses[o][-1]))

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

    def read(self, register: int, time: int, offset: int, width: int) -> None:
        step = self.lane_steps[time]
        if time == self.out and not step:
            step = self.item  # an index of size 1
        self.fetch(register, time, offset, width, step)

    def fetch(self, register: int, time: int, offset: int, width: int, step: int) -> None:
        """Lanes that are `step` bytes apart."""
        if self.items[time] == 2:
            self.widened(register, time, offset, width, step)
        elif step == 0:
            self.emit("splat", register, time, offset)
        elif step == self.item:
            self.emit("load", register, time, offset, self.mask(width))
        else:
            self.apart("gather", register, time, offset, width, step)

    def widened(self, register: int, time: int, offset: int, width: int, step: int) -> None:
        """Elements of bf16, which become f32 as they are read."""
        if step == 0:
            self.emit("splat16", register, time, offset)
        elif step == 2:
            self.emit("load16", register, time, offset, self.mask(width), width)
        else:
            self.emit("gather16", register, time, offset, width, step)

    def put(self, register: int, offset: int, width: int) -> None:
        step = self.lane_steps[self.out] or self.item
        if step == self.item:
            self.emit("store", register, self.out, offset, self.mask(width))
        else:
            self.apart("scatter", register, self.out, offset, width, step)

    def apart(
        self, word: str, register: int, time: int, offset: int, width: int, step: int
    ) -> None:
        if abs(step) * self.lanes >= 2**31:
            raise ScheduleError("lanes are too far apart", facts=f"{step} bytes")
        slot = self.slot("offsets", step // self.item)
        self.emit(word, register, time, offset, self.mask(width), slot, width, step)

    def mask(self, width: int) -> int:
        if width == self.lanes:
            return 0
        if width not in self.widths:
            if len(self.widths) == MASKS:
                raise ScheduleError(
                    "this nest has too many different tails",
                    facts=f"{self.across} ends in {', '.join(map(str, [*self.widths, width]))} "
                    f"of {self.lanes} lanes; there are {MASKS} masks",
                    hint=f"split {self.across} less often",
                )
            self.widths.append(width)
        return self.widths.index(width) + 1

    def slot(self, kind: Literal["offsets", "value", "bits"], value: float) -> int:
        constant = Constant(kind, value)
        if constant not in self.pool:
            self.pool.append(constant)
        return self.pool.index(constant)
