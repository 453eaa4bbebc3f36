"""Nest to vector program: which loops stay loops, and what every vector register holds.

The innermost loop runs in lanes. Accumulators of the largest suffix of loops that fits into
registers stay there; nothing is ever spilled (LoopNest, appendix A). Loads are reused while their
register lasts, loops inside the suffix are unrolled. Sums whose loops enclose the suffix pass
through the output's memory, which the write nest initializes before and finishes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from recurra.errors import ScheduleError
from recurra.nest.instruction_builder import InstructionBuilder
from recurra.nest.loops import Nest, canonical
from recurra.nest.program import POINTERS, NestCode
from recurra.nest.register_scopes import Extents, PackBuffer
from recurra.nest.target import VectorTarget

UNROLL = 24  # multiply-adds between two jumps, about
FULL, FURTHER = 8, 48  # a tile of so many runs longest: it is unrolled further
LONGEST = 6000  # instructions: tails multiply bodies
SWEEP = 8  # vectors between two jumps of a pass over memory
BUFFERS = 2**19  # bytes of a scratch area: half of a second-level cache of 1 MiB


def generate(nest: Nest, target: VectorTarget) -> NestCode:
    """Return the vector program of a nest; raise ScheduleError if it grows too large."""
    return _Generator(nest, target).program()


class _Generator(InstructionBuilder):
    """One run of `generate`: the code so far, and the registers' contents at its end."""

    def __init__(self, nest: Nest, target: VectorTarget) -> None:
        super().__init__(nest, target)
        p = self.problem
        self.write = canonical(nest.write_steps, p.extents) if nest.write else ()
        self.accumulators: dict[int, tuple[int, int]] = {}
        """Byte offset in the output → (register, width)"""
        self.copies = p.combine == "sum" and not (p.reduced or p.initial) and len(p.inputs) == 1

    def program(self) -> NestCode:
        self.check_buffers()
        full = dict(self.problem.extents)
        for t, tensor in enumerate(self.tensors):
            self.move(t, tensor.base * self.items[t])
        if self.through_memory and not self.problem.initial:
            self.sweep(0, full, finish=False)
        self.outer(0, full)
        if self.through_memory and self.problem.post:
            self.sweep(0, full, finish=True)
        while self.code[-1][0] == "move":  # the pointers are dead here
            self.code.pop()
        return super().program()

    def check_buffers(self) -> None:
        if (size := sum(b.size for b in self.buffers)) > BUFFERS:
            raise ScheduleError(
                "what is packed is too large",
                facts=f"{size} bytes, at most {BUFFERS}",
                hint="pack further inside, or split an index of it",
            )
        if (count := len(self.tensors) + len(self.buffers)) > POINTERS:
            raise ScheduleError(
                "too many tensors and buffers", facts=f"{count}, there are {POINTERS} pointers"
            )

    # Loops

    @contextmanager
    def repeated(self, count: int) -> Generator[None]:
        """Emit the block's instructions as a loop; one trip needs none."""
        if count > 1:
            self.emit("repeat", count)
        yield
        if count > 1:
            self.emit("end")

    def strip_mined(
        self, extent: int, steps: Mapping[int, int], body: Callable[[int], None]
    ) -> None:
        """Emit `body(points)` for strips of SWEEP vectors, in a loop, and for the points left over.

        `steps`: pointer → bytes per point. The pointers are at the end what they were.
        """
        length = SWEEP * self.lanes
        trips, rest = divmod(extent, length)
        if trips:
            with self.repeated(trips):
                body(length)
                for pointer, step in steps.items():
                    self.move(pointer, step * length)
        body(rest)
        for pointer, step in steps.items():
            self.move(pointer, -step * length * trips)

    # Loops outside of the registers' scope

    def outer(self, level: int, extents: Extents) -> None:
        for buffer in self.buffers:
            if buffer.level == level:
                outer = [i for i in buffer.order[:-1] if extents[i] > 1]
                self.pack(buffer, [*outer, *buffer.order[-1:]], extents)
        if self.starts(level, extents):
            self.scope(level, extents)
            return
        index, step = self.loops[level]
        full, tail = divmod(extents[index], step)
        several = full > 1 or tail > 0
        if full:
            with self.repeated(full):
                self.outer(level + 1, {**extents, index: step})
                self.shift(index, step * several, level)
        if tail:
            self.outer(level + 1, {**extents, index: tail})
        self.shift(index, -full * step * several, level)

    def pack(self, buffer: PackBuffer, order: list[str], extents: Extents) -> None:
        """Copy an input's points within `extents`; both pointers are at the end what they were."""
        if len(order) < 2:
            self.pack_row(buffer, *([(order[0], extents[order[0]])] if order else [("", 1)]))
            return
        index, *inner = order
        t, b = buffer.tensor, buffer.pointer
        with self.repeated(extents[index]):
            self.pack(buffer, inner, extents)
            self.move(t, self.steps[index][t])
            self.move(b, self.steps[index][b])
        self.move(t, -self.steps[index][t] * extents[index])
        self.move(b, -self.steps[index][b] * extents[index])

    def pack_row(self, buffer: PackBuffer, row: tuple[str, int]) -> None:
        (index, extent), t, b = row, buffer.tensor, buffer.pointer
        step = self.steps[index][t] if index else 0

        def copy(points: int) -> None:
            for start in range(0, points, self.lanes):
                width = min(self.lanes, points - start)
                self.load_strided(0, t, step * start, width, step)
                self.emit("store", 0, b, self.item * start, self.mask(width))

        self.strip_mined(extent, {t: step, b: self.item}, copy)

    # The registers' scope

    def scope(self, level: int, extents: Extents) -> None:
        """Emit the loops from `level` inwards, with all their accumulators in registers."""
        if not self.fits(level, extents):  # the innermost loop alone is too long
            self.strips(level, extents)
            return
        offsets = [(0, self.lanes)]
        for i in self.output_indices:
            step = self.steps[i][self.out]
            if i == self.lane_index:
                chunks = self.chunks(level, extents[i])
                offsets = [(o + step * at, w) for o, _ in offsets for at, w in chunks]
            else:
                offsets = [(o + step * k, w) for o, w in offsets for k in range(extents[i])]
        if self.in_lanes and self.lane_index not in self.output_indices:  # of size 1, in lane 0
            offsets = [(o, 1) for o, _ in offsets]
        self.accumulators = {o: (r, w) for r, (o, w) in enumerate(offsets)}
        self.spare = list(range(len(offsets), self.target.registers - self.reserved))
        accumulate = self.problem.initial or self.is_partial(extents)
        self.begin(accumulate)
        self.inner(level, extents, (0,) * self.out, 0)
        self.flush()
        self.finish(accumulate)

    def strips(self, level: int, extents: Extents) -> None:
        index = self.lane_index
        width = max(1, min(SWEEP // 2, self.max_accumulators)) * self.lanes
        full, tail = divmod(extents[index], width)
        with self.repeated(full):
            self.scope(level, {**extents, index: width})
            self.shift(index, width, level)
        if tail:
            self.scope(level, {**extents, index: tail})
        self.shift(index, -full * width, level)

    def begin(self, accumulate: bool) -> None:
        """Load the accumulators, or set them to the reduction's neutral element."""
        if self.copies:
            return
        for offset, (r, width) in self.accumulators.items():
            if accumulate and self.in_lanes:
                self.load(r, self.out, offset, width)
            else:
                self.neutral(r)

    def finish(self, accumulate: bool) -> None:
        """Store the accumulators, after the post-op if they are complete."""
        complete = not self.through_memory
        tmp, other = self.spare[:2]
        for offset, (r, width) in self.accumulators.items():
            if self.in_lanes:
                if complete:
                    self.post(r, tmp)
                self.store(r, offset, width)
                continue
            self.emit("sum" if self.problem.combine == "sum" else "top", r, tmp)
            if accumulate:
                self.emit("first", other, self.out, offset)
                self.emit("add" if self.problem.combine == "sum" else "max", r, other, 0)
            if complete:
                self.post(r, tmp)
            self.emit("single", r, self.out, offset)

    def inner(self, level: int, extents: Extents, at: tuple[int, ...], out: int) -> None:
        """Emit unrolled code; `at` and `out` are byte offsets from the tensors' pointers."""
        if level == self.last:
            self.leaf(extents[self.lane_index], at, out)
            return
        index, step = self.loops[level]
        full, tail = divmod(extents[index], step)
        inside = {**extents, index: step}
        out_step = self.steps[index][self.out]
        done = 0
        if index not in self.output_indices and full:
            done = self.rolled(level, full, inside, at, out)
        for k in range(done, full):
            self.inner(level + 1, inside, self.after(at, index, step * (k - done)),
                       out + out_step * step * k)  # fmt: skip
        if tail:
            self.inner(level + 1, {**extents, index: tail},
                       self.after(at, index, step * (full - done)),
                       out + out_step * step * full)  # fmt: skip
        if done:
            self.flush()
            self.shift(index, -done * step, level)

    def after(self, at: tuple[int, ...], index: str, points: int) -> tuple[int, ...]:
        """Return byte offsets into the inputs, so many points of an index further."""
        return tuple(o + s * points for o, s in zip(at, self.input_steps[index], strict=True))

    def rolled(self, level: int, full: int, inside: Extents, at: tuple[int, ...], out: int) -> int:
        """Emit most trips of a reduction as a real loop, so that code stays short; count them.

        Pointers are moved, and offsets stay as they are.
        """
        index, step = self.loops[level]
        work = self.vectors(level + 1, inside, list(self.problem.extents))
        unroll = FURTHER if len(self.accumulators) >= FULL else UNROLL
        most = max(1, unroll // work)
        if most * 2 > full:
            return 0
        trips = full // -(-full // most)  # as even as can be: the rest is unrolled
        self.flush()
        with self.repeated(full // trips):
            for k in range(trips):
                self.inner(level + 1, inside, self.after(at, index, step * k), out)
            self.flush()
            self.shift(index, trips * step, level)
        return full // trips * trips

    def leaf(self, extent: int, at: tuple[int, ...], out: int) -> None:
        """Queue one multiply-add per vector of the innermost loop."""
        if len(self.code) + len(self.block) > LONGEST:
            raise ScheduleError(
                "this nest makes too much code",
                facts=f"more than {LONGEST} instructions: every tail is a body of its own",
                hint="split by divisors of the sizes, or less often",
            )
        lane_steps, out_step = self.lane_steps, self.lane_steps[self.out]
        mask = 0
        for start in range(0, extent, self.lanes):
            width = min(self.lanes, extent - start)
            r = self.accumulators[out + out_step * start if self.in_lanes else out][0]
            if self.copies:
                pointer = self.input_pointers[0]
                self.load(r, pointer, at[0] + lane_steps[pointer] * start, width)
                continue
            if not self.in_lanes:
                mask = self.mask(width)
            operands = tuple(
                (t, o + lane_steps[t] * start, width) if lane_steps[t] else (t, o, self.lanes)
                for t, o in zip(self.input_pointers, at, strict=True)
            )
            self.block.append((r, operands, mask))

    # Passes over the output, for sums that pass through memory

    def sweep(self, level: int, extents: Mapping[str, int], *, finish: bool) -> None:
        """Set every element of the output to the neutral element, or apply the post-op to each."""
        if level == len(self.write):
            self.element(finish=finish)
            return
        index, step = self.write[level]
        if level == len(self.write) - 1:
            self.row(index, extents[index], finish=finish)
            return
        full, tail = divmod(extents[index], step)
        bytes_per_trip = self.steps[index][self.out] * step
        if full:
            with self.repeated(full):
                self.sweep(level + 1, {**extents, index: step}, finish=finish)
                self.move(self.out, bytes_per_trip)
        if tail:
            self.sweep(level + 1, {**extents, index: tail}, finish=finish)
        self.move(self.out, -bytes_per_trip * full)

    def row(self, index: str, extent: int, *, finish: bool) -> None:
        step = self.steps[index][self.out]
        saved, self.lane_steps = self.lane_steps, (0,) * self.out + (step,)

        def strip(points: int) -> None:
            if points and not finish:
                self.neutral(0)
            for start in range(0, points, self.lanes):
                width = min(self.lanes, points - start)
                if finish:
                    self.load(0, self.out, step * start, width)
                    self.post(0, 1)
                self.store(0, step * start, width)

        self.strip_mined(extent, {self.out: step}, strip)
        self.lane_steps = saved

    def element(self, *, finish: bool) -> None:
        if finish:
            self.emit("first", 0, self.out, 0)
            self.post(0, 1)
        else:
            self.neutral(0)
        self.emit("single", 0, self.out, 0)
