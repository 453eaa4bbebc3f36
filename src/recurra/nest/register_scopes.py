"""Register scopes: the loops of a nest whose accumulators fit into the registers of a target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from recurra.nest.loops import Nest, placed
from recurra.nest.problem import ITEM_BYTES
from recurra.nest.target import VectorTarget

SPARE = 4  # registers for operands beside the accumulators

Extents = dict[str, int]


@dataclass(frozen=True)
class PackBuffer:
    """A packed input: `tensor`, before the loop at `level`, at pointer `pointer`."""

    tensor: int
    pointer: int
    level: int
    order: tuple[str, ...]
    """Indices, the one whose points are contiguous last"""
    steps: Mapping[str, int]
    """Bytes"""
    size: int
    """Bytes"""


class RegisterScopes:
    """The loops of a nest that become code, and the registers that suffixes of them need.

    A level counts loops from the outside; `extents` are the points that outer loops leave.
    """

    def __init__(self, nest: Nest, target: VectorTarget) -> None:
        p = self.problem = nest.problem
        self.target, self.item = target, ITEM_BYTES[p.dtype]
        self.tensors = (*p.inputs, p.output)
        self.items = tuple(ITEM_BYTES[t.dtype] for t in self.tensors)
        self.lanes = target.lanes(p.dtype)
        self.loops, levels = placed(nest.steps, p.extents, [x.level for x in nest.packs])
        self.last = len(self.loops) - 1
        self.lane_index = self.loops[-1][0]
        self.output_indices = [i for i, n in p.sizes if i in p.output.indices and n > 1]
        self.in_lanes = self.lane_index in p.output.indices  # else lanes are partial results
        pairs = tuple(zip(self.tensors, self.items, strict=True))
        self.steps = {i: tuple(t.steps.get(i, 0) * item for t, item in pairs) for i, _ in p.sizes}
        names = [t.name for t in p.inputs]
        packed = [names.index(x.tensor) for x in nest.packs]
        self.buffers = tuple(
            self._buffer(t, len(self.tensors) + k, level)
            for k, (t, level) in enumerate(zip(packed, levels, strict=True))
        )
        self.pack_level = max(levels, default=0)  # accumulators begin here or further inside
        self.items += (self.item,) * len(self.buffers)
        for i in self.steps:
            self.steps[i] += tuple(b.steps.get(i, 0) for b in self.buffers)
        packed_at = {b.tensor: b.pointer for b in self.buffers}
        self.input_pointers = tuple(packed_at.get(t, t) for t in range(len(p.inputs)))
        """The pointer at which the inner loops find each input"""
        self.input_steps = {
            i: tuple(steps[t] for t in self.input_pointers) for i, steps in self.steps.items()
        }
        self.lane_steps = self.steps[self.lane_index]
        self._chunks: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def _buffer(self, tensor: int, pointer: int, level: int) -> PackBuffer:
        """Lay out an input in the order in which the loops from `level` inwards read it."""
        extents = dict(self.problem.extents)
        extents.update(self.loops[:level])
        inner = list(dict.fromkeys(i for i, _ in reversed(self.loops[level:])))
        order = [i for i in inner if self.steps[i][tensor] and extents[i] > 1]
        steps, size = dict[str, int](), self.item
        for i in order:
            steps[i] = size
            size *= extents[i]
            if i == self.lane_index:  # rows begin where vectors do
                size = -(-size // self.target.bytes) * self.target.bytes
        return PackBuffer(tensor, pointer, level, tuple(reversed(order)), steps, size)

    @cached_property
    def reserved(self) -> int:
        """The number of registers, from the last one down, that encodings need for themselves."""
        lengths = [step for i, step in self.loops[:-1] if i == self.lane_index]
        lengths.append(self.problem.extents[self.lane_index])
        tails = any(n % self.lanes for n in lengths)
        read = (*self.input_pointers, len(self.input_pointers))
        gathers = any(self.lane_steps[t] not in (0, self.items[t]) for t in read)
        if self.target.masked:
            return int(gathers)
        blends = self.problem.combine == "max" or (tails and not self.in_lanes)
        return 2 if gathers or blends else int(tails)

    @cached_property
    def max_accumulators(self) -> int:
        spare = max(SPARE, 1 + len(self.problem.inputs))
        return self.target.registers - self.reserved - spare

    def chunks(self, level: int, extent: int) -> list[tuple[int, int]]:
        """Return (offset, width) of the lane index's vectors, in the loops from `level` inwards."""
        key = level, extent
        if key not in self._chunks:
            self._chunks[key] = self._split(level, extent)
        return self._chunks[key]

    def _split(self, level: int, extent: int) -> list[tuple[int, int]]:
        if level == self.last:
            return [(o, min(self.lanes, extent - o)) for o in range(0, extent, self.lanes)]
        index, step = self.loops[level]
        if index != self.lane_index:
            return self.chunks(level + 1, extent)
        return [
            (start + o, w)
            for start in range(0, extent, step)
            for o, w in self.chunks(level + 1, min(step, extent - start))
        ]

    def vectors(self, level: int, extents: Extents, indices: list[str]) -> int:
        """Count the vectors of the points of `indices`, in the loops from `level` inwards."""
        lanes = (
            len(self.chunks(level, extents[self.lane_index])) if self.lane_index in indices else 1
        )
        return lanes * math.prod(extents[i] for i in indices if i != self.lane_index)

    def fits(self, level: int, extents: Extents) -> bool:
        return self.vectors(level, extents, self.output_indices) <= self.max_accumulators

    def starts(self, level: int, extents: Extents) -> bool:
        """Return whether accumulators live in registers from this loop inwards."""
        if level < self.pack_level:
            return False
        if level == self.last:
            return True
        if not self.fits(level, extents):
            return False
        indices = [i for i, _ in self.loops[level:]]
        return indices[0] not in self.output_indices or all(
            i in self.output_indices for i in indices
        )

    @cached_property
    def through_memory(self) -> bool:
        """Tell whether sums leave the registers before they are complete."""
        return self._through_memory(0, dict(self.problem.extents))

    def _through_memory(self, level: int, extents: Extents) -> bool:
        if self.starts(level, extents):
            return self.is_partial(extents)
        index, step = self.loops[level]
        full, tail = divmod(extents[index], step)
        left = [e for e in (step if full else 0, tail) if e]
        return any(self._through_memory(level + 1, {**extents, index: e}) for e in left)

    def is_partial(self, extents: Extents) -> bool:
        return any(extents[i] != self.problem.extents[i] for i in self.problem.reduced)
