"""Nest to vector program: which loops stay loops, and what every vector register holds.

The innermost loop runs in lanes. Accumulators of the largest suffix of loops that fits into
registers stay there; nothing is ever spilled (LoopNest, appendix A). Loads are reused while their
register lasts, loops inside the suffix are unrolled. Sums whose loops enclose the suffix pass
through the output's memory, which is then initialised before and finished after, by the write nest.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from functools import cached_property

from recurra.errors import ScheduleError
from recurra.nest.loops import Nest, canonical
from recurra.nest.problem import ITEM_BYTES, Access
from recurra.nest.program import MASKS, Constant, Instruction, Program
from recurra.nest.target import Target

UNROLL = 24  # multiply-adds between two jumps, about
LONGEST = 6000  # instructions: tails multiply bodies
SPARE = 4  # registers for operands beside the accumulators
SWEEP = 8  # vectors between two jumps, where memory is only passed over

Extents = dict[str, int]
Operand = tuple[int, int, int]
"""(tensor, byte offset, width)"""


def generate(nest: Nest, target: Target) -> Program:
    """The vector program of a nest; raises ScheduleError if it grows too large."""
    return _Generator(nest, target).program()


class _Generator:
    """One run of `generate`: the code so far and what registers hold at its end."""

    def __init__(self, nest: Nest, target: Target) -> None:
        p = self.problem = nest.problem
        self.target, self.item = target, ITEM_BYTES[p.dtype]
        self.lanes = target.lanes(p.dtype)
        self.loops = canonical(nest.steps, p.extents)
        self.write = canonical(nest.write_steps, p.extents) if nest.write else ()
        self.last = len(self.loops) - 1
        self.across = self.loops[-1][0]  # the index that runs in lanes
        self.kept = [i for i, n in p.sizes if i in p.output.indices and n > 1]
        self.in_lanes = self.across in p.output.indices  # else every lane is a partial result
        self.tensors = (*p.inputs, p.output)
        self.out = len(p.inputs)
        self.steps = {i: tuple(self.bytes(t, i) for t in self.tensors) for i, _ in p.sizes}
        self.lane_steps = self.steps[self.across]
        self.code: list[Instruction] = []
        self.widths: list[int] = []
        self.pool: list[Constant] = []
        self.chunked: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.accumulators: dict[int, tuple[int, int]] = {}
        self.spare: list[int] = []
        self.block: list[tuple[int, tuple[Operand, ...], int]] = []
        self.moves = p.combine == "sum" and not (p.reduced or p.initial) and len(p.inputs) == 1

    def bytes(self, tensor: Access, index: str) -> int:
        return tensor.steps.get(index, 0) * self.item

    def program(self) -> Program:
        full = dict(self.problem.extents)
        for t, tensor in enumerate(self.tensors):
            self.move(t, tensor.base * self.item)
        if self.through_memory and not self.problem.initial:
            self.sweep(0, full, "initialise")
        self.outer(0, full)
        if self.through_memory and self.problem.post:
            self.sweep(0, full, "finish")
        while self.code[-1][0] == "move":  # nobody reads the pointers any more
            self.code.pop()
        return Program(
            self.target.name,
            self.problem.dtype,
            self.lanes,
            len(self.tensors),
            tuple(self.code),
            tuple(self.widths),
            tuple(self.pool),
        )

    # What fits

    @cached_property
    def reserved(self) -> int:
        """Registers, from the last one down, that encodings need for themselves."""
        lengths = [step for i, step in self.loops[:-1] if i == self.across]
        lengths.append(self.problem.extents[self.across])
        tails = any(n % self.lanes for n in lengths)
        gathers = any(s not in (0, self.item) for s in self.lane_steps)
        if self.target.masked:
            return int(gathers)
        blends = self.problem.combine == "max" or (tails and not self.in_lanes)
        return 2 if gathers or blends else int(tails)

    @cached_property
    def most(self) -> int:
        """Accumulators that fit."""
        spare = max(SPARE, 1 + len(self.problem.inputs))
        return self.target.registers - self.reserved - spare

    def chunks(self, level: int, extent: int) -> list[tuple[int, int]]:
        """(offset, width) of the vectors of the lanes' index, in the loops from `level` inwards."""
        key = level, extent
        if key not in self.chunked:
            self.chunked[key] = self._chunks(level, extent)
        return self.chunked[key]

    def _chunks(self, level: int, extent: int) -> list[tuple[int, int]]:
        if level == self.last:
            return [(o, min(self.lanes, extent - o)) for o in range(0, extent, self.lanes)]
        index, step = self.loops[level]
        if index != self.across:
            return self.chunks(level + 1, extent)
        return [
            (start + o, w)
            for start in range(0, extent, step)
            for o, w in self.chunks(level + 1, min(step, extent - start))
        ]

    def vectors(self, level: int, extents: Extents, indices: list[str]) -> int:
        """How many vectors the points of `indices` in the loops from `level` inwards make."""
        lanes = len(self.chunks(level, extents[self.across])) if self.across in indices else 1
        return lanes * math.prod(extents[i] for i in indices if i != self.across)

    def fits(self, level: int, extents: Extents) -> bool:
        return self.vectors(level, extents, self.kept) <= self.most

    def starts(self, level: int, extents: Extents) -> bool:
        """Do accumulators live in registers from this loop inwards?"""
        if level == self.last:
            return True
        if not self.fits(level, extents):
            return False
        indices = [i for i, _ in self.loops[level:]]
        return indices[0] not in self.kept or all(i in self.kept for i in indices)

    @cached_property
    def through_memory(self) -> bool:
        """Are there sums that leave the registers before they are complete?"""
        return self._through_memory(0, dict(self.problem.extents))

    def _through_memory(self, level: int, extents: Extents) -> bool:
        if self.starts(level, extents):
            return self.incomplete(extents)
        index, step = self.loops[level]
        full, tail = divmod(extents[index], step)
        left = [e for e in (step if full else 0, tail) if e]
        return any(self._through_memory(level + 1, {**extents, index: e}) for e in left)

    def incomplete(self, extents: Extents) -> bool:
        return any(extents[i] != self.problem.extents[i] for i in self.problem.reduced)

    # Loops outside of the registers' scope

    def outer(self, level: int, extents: Extents) -> None:
        if self.starts(level, extents):
            self.scope(level, extents)
            return
        index, step = self.loops[level]
        full, tail = divmod(extents[index], step)
        inside, moved = {**extents, index: step}, 0
        if full > 1:
            self.emit("repeat", full)
        if full:
            self.outer(level + 1, inside)
            if full > 1 or tail:
                self.shift(index, step)
                moved = full * step
        if full > 1:
            self.emit("end")
        if tail:
            self.outer(level + 1, {**extents, index: tail})
        self.shift(index, -moved)

    def shift(self, index: str, points: int) -> None:
        for t, step in enumerate(self.steps[index]):
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

    # The registers' scope

    def scope(self, level: int, extents: Extents) -> None:
        """The loops from `level` inwards, with all their accumulators in registers."""
        if not self.fits(level, extents):  # the innermost loop alone is too long
            self.strips(level, extents)
            return
        self.accumulators = {}
        offsets = [(0, self.lanes)]
        for i in self.kept:
            step = self.steps[i][self.out]
            if i == self.across:
                chunks = self.chunks(level, extents[i])
                offsets = [(o + step * at, w) for o, _ in offsets for at, w in chunks]
            else:
                offsets = [(o + step * k, w) for o, w in offsets for k in range(extents[i])]
        if self.in_lanes and self.across not in self.kept:  # an index of size 1, in lane 0
            offsets = [(o, 1) for o, _ in offsets]
        self.accumulators = {o: (r, w) for r, (o, w) in enumerate(offsets)}
        self.spare = list(range(len(offsets), self.target.registers - self.reserved))
        again = self.problem.initial or self.incomplete(extents)
        self.begin(again)
        self.inner(level, extents, (0,) * self.out, 0)
        self.flush()
        self.finish(again)

    def strips(self, level: int, extents: Extents) -> None:
        index = self.across
        width = max(1, min(SWEEP // 2, self.most)) * self.lanes
        full, tail = divmod(extents[index], width)
        if full > 1:
            self.emit("repeat", full)
        self.scope(level, {**extents, index: width})
        self.shift(index, width)
        if full > 1:
            self.emit("end")
        if tail:
            self.scope(level, {**extents, index: tail})
        self.shift(index, -full * width)

    def begin(self, again: bool) -> None:
        """Accumulators start from memory, or from what changes nothing."""
        if self.moves:
            return
        for offset, (r, width) in self.accumulators.items():
            if again and self.in_lanes:
                self.read(r, self.out, offset, width)
            else:
                self.neutral(r)

    def neutral(self, r: int) -> None:
        if self.problem.combine == "sum":
            self.emit("zero", r)
        else:
            self.emit("constant", r, self.slot("value", -math.inf))

    def finish(self, again: bool) -> None:
        """Results go to memory, with the post-op if nothing is to come."""
        done = not self.through_memory
        tmp, other = self.spare[:2]
        for offset, (r, width) in self.accumulators.items():
            if self.in_lanes:
                if done:
                    self.post(r, tmp)
                self.put(r, offset, width)
                continue
            self.emit("sum" if self.problem.combine == "sum" else "top", r, tmp)
            if again:
                self.emit("first", other, self.out, offset)
                self.emit("add" if self.problem.combine == "sum" else "max", r, other, 0)
            if done:
                self.post(r, tmp)
            self.emit("single", r, self.out, offset)

    def post(self, r: int, tmp: int) -> None:
        bits = 8 * self.item
        match self.problem.post:
            case None:
                return
            case "relu":
                self.emit("relu", r, tmp)
            case "square":
                self.emit("square", r)
            case "abs":
                self.emit("abs", r, self.slot("bits", 2 ** (bits - 1) - 1))
            case "negate":
                self.emit("negate", r, self.slot("bits", 2 ** (bits - 1)))

    def inner(self, level: int, extents: Extents, at: tuple[int, ...], out: int) -> None:
        """Unrolled code; `at` and `out` are byte offsets from the tensors' pointers."""
        if level == self.last:
            self.leaf(extents[self.across], at, out)
            return
        index, step = self.loops[level]
        full, tail = divmod(extents[index], step)
        inside = {**extents, index: step}
        steps = self.steps[index]
        done = 0
        if index not in self.kept and full:
            done, at = self.rolled(level, full, inside, at, out)
        for k in range(done, full):
            there = tuple(o + s * step * (k - done) for o, s in zip(at, steps, strict=False))
            self.inner(level + 1, inside, there, out + steps[self.out] * step * k)
        if tail:
            k = full - done
            there = tuple(o + s * step * k for o, s in zip(at, steps, strict=False))
            self.inner(
                level + 1, {**extents, index: tail}, there, out + steps[self.out] * step * full
            )
        if done:
            self.flush()
            self.shift(index, -done * step)

    def rolled(
        self, level: int, full: int, inside: Extents, at: tuple[int, ...], out: int
    ) -> tuple[int, tuple[int, ...]]:
        """A real loop over most trips of a reduction, so that code stays short; how many it does.

        Pointers are moved, and offsets stay as they are.
        """
        index, step = self.loops[level]
        work = self.vectors(level + 1, inside, list(self.problem.extents))
        most = max(1, UNROLL // work)
        if most * 2 > full:
            return 0, at
        trips = full // -(-full // most)  # as even as can be: the rest is unrolled
        steps = self.steps[index]
        self.flush()
        self.emit("repeat", full // trips)
        for k in range(trips):
            there = tuple(o + s * step * k for o, s in zip(at, steps, strict=False))
            self.inner(level + 1, inside, there, out)
        self.flush()
        self.shift(index, trips * step)
        self.emit("end")
        return full // trips * trips, at

    def leaf(self, extent: int, at: tuple[int, ...], out: int) -> None:
        """One multiply-add per vector of the innermost loop."""
        if len(self.code) + len(self.block) > LONGEST:
            raise ScheduleError(
                "this nest makes too much code",
                facts=f"more than {LONGEST} instructions: every tail is a body of its own",
                hint="split by divisors of the sizes, or less often",
            )
        steps, out_step = self.lane_steps, self.lane_steps[self.out]
        mask = 0
        for start in range(0, extent, self.lanes):
            width = min(self.lanes, extent - start)
            r = self.accumulators[out + out_step * start if self.in_lanes else out][0]
            if self.moves:
                self.read(r, 0, at[0] + steps[0] * start, width)
                continue
            if not self.in_lanes:
                mask = self.mask(width)
            operands = tuple(
                (t, o + s * start, width) if s else (t, o, self.lanes)
                for t, (o, s) in enumerate(zip(at, steps, strict=False))
            )
            self.block.append((r, operands, mask))

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

    def product(self, operands: list[int], x: int) -> list[int]:
        """Multiplies into register x until one operand is left, or two where a sum adds them."""
        left = 2 if self.problem.combine == "sum" else 1
        first, second, *rest = operands
        self.emit("mul", x, first, second)
        while 1 + len(rest) > left:
            self.emit("mul", x, x, rest.pop(0))
        return [x, *rest]

    def combine(self, r: int, operands: list[int], mask: int) -> None:
        if len(operands) == 2:
            self.emit("fma", r, *operands, mask)
        else:
            word = "add" if self.problem.combine == "sum" else "max"
            self.emit(word, r, *operands, mask)

    def read(self, r: int, t: int, offset: int, width: int) -> None:
        step = self.lane_steps[t]
        if t == self.out and not step:
            step = self.item  # an index of size 1
        if step == 0:
            self.emit("splat", r, t, offset)
        elif step == self.item:
            self.emit("load", r, t, offset, self.mask(width))
        else:
            self.apart("gather", r, t, offset, width, step)

    def put(self, r: int, offset: int, width: int) -> None:
        step = self.lane_steps[self.out] or self.item
        if step == self.item:
            self.emit("store", r, self.out, offset, self.mask(width))
        else:
            self.apart("scatter", r, self.out, offset, width, step)

    def apart(self, word: str, r: int, t: int, offset: int, width: int, step: int) -> None:
        if abs(step) * self.lanes >= 2**31:
            raise ScheduleError("lanes are too far apart", facts=f"{step} bytes")
        slot = self.slot("offsets", step // self.item)
        self.emit(word, r, t, offset, self.mask(width), slot, width, step)

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

    def slot(self, kind: str, value: float) -> int:
        constant = Constant(kind, value)  # pyright: ignore[reportArgumentType]
        if constant not in self.pool:
            self.pool.append(constant)
        return self.pool.index(constant)

    # Passes over the output, for sums that pass through memory

    def sweep(self, level: int, extents: Mapping[str, int], what: str) -> None:
        """Writes what changes nothing into every element of the output, or finishes each one."""
        if level == len(self.write):
            self.element(what)
            return
        index, step = self.write[level]
        full, tail = divmod(extents[index], step)
        if level == len(self.write) - 1:
            self.row(index, extents[index], what)
            return
        moved = self.steps[index][self.out] * step
        if full > 1:
            self.emit("repeat", full)
        if full:
            self.sweep(level + 1, {**extents, index: step}, what)
            self.move(self.out, moved)
        if full > 1:
            self.emit("end")
        if tail:
            self.sweep(level + 1, {**extents, index: tail}, what)
        self.move(self.out, -moved * full)

    def row(self, index: str, extent: int, what: str) -> None:
        step = self.steps[index][self.out]
        per_trip = SWEEP * self.lanes
        trips, rest = divmod(extent, per_trip)
        if trips:
            if trips > 1:
                self.emit("repeat", trips)
            self.stretch(step, per_trip, what)
            self.move(self.out, step * per_trip)
            if trips > 1:
                self.emit("end")
        self.stretch(step, rest, what)
        self.move(self.out, -step * per_trip * trips)

    def stretch(self, step: int, extent: int, what: str) -> None:
        saved, self.lane_steps = self.lane_steps, (0,) * self.out + (step,)
        if what == "initialise" and extent:
            self.neutral(0)
        for start in range(0, extent, self.lanes):
            width = min(self.lanes, extent - start)
            if what == "finish":
                self.read(0, self.out, step * start, width)
                self.post(0, 1)
            self.put(0, step * start, width)
        self.lane_steps = saved

    def element(self, what: str) -> None:
        if what == "initialise":
            self.neutral(0)
        else:
            self.emit("first", 0, self.out, 0)
            self.post(0, 1)
        self.emit("single", 0, self.out, 0)
