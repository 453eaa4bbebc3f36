"""Nest to vector program: which loops stay loops, and what every vector register holds.

The innermost loop runs in lanes. Accumulators of the largest suffix of loops that fits into
registers stay there; nothing is ever spilled (LoopNest, appendix A). Loads are reused while their
register lasts, loops inside the suffix are unrolled. Sums whose loops enclose the suffix pass
through the output's memory, which is then initialized before and finished after, by the write nest.
"""

from __future__ import annotations

from collections.abc import Mapping

from recurra.errors import ScheduleError
from recurra.nest.instruction_builder import Emission
from recurra.nest.loops import Nest, canonical
from recurra.nest.program import POINTERS, NestCode
from recurra.nest.register_scopes import Extents, PackBuffer
from recurra.nest.target import VectorTarget

UNROLL = 24  # multiply-adds between two jumps, about
FULL, FURTHER = 8, 48  # a tile of so many is what runs longest: it is unrolled further
LONGEST = 6000  # instructions: tails multiply bodies
SWEEP = 8  # vectors between two jumps, where memory is only passed over
BUFFERS = 2**19  # bytes of a scratch area: half of a second-level cache of 1 MiB


def generate(nest: Nest, target: VectorTarget) -> NestCode:
    """The vector program of a nest; raises ScheduleError if it grows too large."""
    return _Generator(nest, target).program()


class _Generator(Emission):
    """One run of `generate`: the code so far and what registers hold at its end."""

    def __init__(self, nest: Nest, target: VectorTarget) -> None:
        super().__init__(nest, target)
        p = self.problem
        self.write = canonical(nest.write_steps, p.extents) if nest.write else ()
        self.accumulators: dict[int, tuple[int, int]] = {}
        self.moves = p.combine == "sum" and not (p.reduced or p.initial) and len(p.inputs) == 1

    def program(self) -> NestCode:
        self.check_buffers()
        full = dict(self.problem.extents)
        for t, tensor in enumerate(self.tensors):
            self.move(t, tensor.base * self.items[t])
        if self.through_memory and not self.problem.initial:
            self.sweep(0, full, "initialize")
        self.outer(0, full)
        if self.through_memory and self.problem.post:
            self.sweep(0, full, "finish")
        while self.code[-1][0] == "move":  # nobody reads the pointers any more
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
        inside, moved = {**extents, index: step}, 0
        if full > 1:
            self.emit("repeat", full)
        if full:
            self.outer(level + 1, inside)
            if full > 1 or tail:
                self.shift(index, step, level)
                moved = full * step
        if full > 1:
            self.emit("end")
        if tail:
            self.outer(level + 1, {**extents, index: tail})
        self.shift(index, -moved, level)

    def pack(self, buffer: PackBuffer, order: list[str], extents: Extents) -> None:
        """Copies what `extents` leave of an input; both pointers are where they were, after it."""
        if len(order) < 2:
            self.pack_row(buffer, *([(order[0], extents[order[0]])] if order else [("", 1)]))
            return
        index, *inner = order
        t, b = buffer.tensor, buffer.pointer
        self.emit("repeat", extents[index])
        self.pack(buffer, inner, extents)
        self.move(t, self.steps[index][t])
        self.move(b, self.steps[index][b])
        self.emit("end")
        self.move(t, -self.steps[index][t] * extents[index])
        self.move(b, -self.steps[index][b] * extents[index])

    def pack_row(self, buffer: PackBuffer, row: tuple[str, int]) -> None:
        (index, extent), t, b = row, buffer.tensor, buffer.pointer
        step, per_trip = (self.steps[index][t] if index else 0), SWEEP * self.lanes
        trips, rest = divmod(extent, per_trip)
        if trips > 1:
            self.emit("repeat", trips)
        for count in (per_trip if trips else 0, rest):
            for start in range(0, count, self.lanes):
                width = min(self.lanes, count - start)
                self.fetch(0, t, step * start, width, step)
                self.emit("store", 0, b, self.item * start, self.mask(width))
            if count == per_trip:
                self.move(t, step * per_trip)
                self.move(b, self.item * per_trip)
                if trips > 1:
                    self.emit("end")
        self.move(t, -step * per_trip * trips)
        self.move(b, -self.item * per_trip * trips)

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
        self.shift(index, width, level)
        if full > 1:
            self.emit("end")
        if tail:
            self.scope(level, {**extents, index: tail})
        self.shift(index, -full * width, level)

    def begin(self, again: bool) -> None:
        """Accumulators start from memory, or from what changes nothing."""
        if self.moves:
            return
        for offset, (r, width) in self.accumulators.items():
            if again and self.in_lanes:
                self.read(r, self.out, offset, width)
            else:
                self.neutral(r)

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

    def inner(self, level: int, extents: Extents, at: tuple[int, ...], out: int) -> None:
        """Unrolled code; `at` and `out` are byte offsets from the tensors' pointers."""
        if level == self.last:
            self.leaf(extents[self.across], at, out)
            return
        index, step = self.loops[level]
        full, tail = divmod(extents[index], step)
        inside = {**extents, index: step}
        steps, out_step = self.near[index], self.steps[index][self.out]
        done = 0
        if index not in self.kept and full:
            done, at = self.rolled(level, full, inside, at, out)
        for k in range(done, full):
            there = tuple(o + s * step * (k - done) for o, s in zip(at, steps, strict=True))
            self.inner(level + 1, inside, there, out + out_step * step * k)
        if tail:
            k = full - done
            there = tuple(o + s * step * k for o, s in zip(at, steps, strict=True))
            self.inner(level + 1, {**extents, index: tail}, there, out + out_step * step * full)
        if done:
            self.flush()
            self.shift(index, -done * step, level)

    def rolled(
        self, level: int, full: int, inside: Extents, at: tuple[int, ...], out: int
    ) -> tuple[int, tuple[int, ...]]:
        """A real loop over most trips of a reduction, so that code stays short; how many it does.

        Pointers are moved, and offsets stay as they are.
        """
        index, step = self.loops[level]
        work = self.vectors(level + 1, inside, list(self.problem.extents))
        unroll = FURTHER if len(self.accumulators) >= FULL else UNROLL
        most = max(1, unroll // work)
        if most * 2 > full:
            return 0, at
        trips = full // -(-full // most)  # as even as can be: the rest is unrolled
        self.flush()
        self.emit("repeat", full // trips)
        for k in range(trips):
            there = tuple(o + s * step * k for o, s in zip(at, self.near[index], strict=True))
            self.inner(level + 1, inside, there, out)
        self.flush()
        self.shift(index, trips * step, level)
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
        lane_steps, out_step = self.lane_steps, self.lane_steps[self.out]
        mask = 0
        for start in range(0, extent, self.lanes):
            width = min(self.lanes, extent - start)
            r = self.accumulators[out + out_step * start if self.in_lanes else out][0]
            if self.moves:
                seen = self.seen[0]
                self.read(r, seen, at[0] + lane_steps[seen] * start, width)
                continue
            if not self.in_lanes:
                mask = self.mask(width)
            operands = tuple(
                (t, o + lane_steps[t] * start, width) if lane_steps[t] else (t, o, self.lanes)
                for t, o in zip(self.seen, at, strict=True)
            )
            self.block.append((r, operands, mask))

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
        if what == "initialize" and extent:
            self.neutral(0)
        for start in range(0, extent, self.lanes):
            width = min(self.lanes, extent - start)
            if what == "finish":
                self.read(0, self.out, step * start, width)
                self.post(0, 1)
            self.put(0, step * start, width)
        self.lane_steps = saved

    def element(self, what: str) -> None:
        if what == "initialize":
            self.neutral(0)
        else:
            self.emit("first", 0, self.out, 0)
            self.post(0, 1)
        self.emit("single", 0, self.out, 0)
