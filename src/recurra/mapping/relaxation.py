"""A linear program that every mapping satisfies: addresses are left out, time is not.

Columns: for each buffer c, it is copied, and x, its tensor is in fast memory at its step (x - c: it
stays from the use before); g, the gain of each instruction; then when copies begin or end, and room
that is taken in one of two ways. Rows: what is needed to stay; one copy at a time; bandwidth; room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from recurra.mapping.copy_windows import NARROW, Bandwidth, CopyWindow, crossings, nearest
from recurra.mapping.struct_of_arrays import FlatProblem
from recurra.storage.mapping_problem import Latency

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Row = dict[int, float]
WINDOWS = 24  # ends of wide windows of steps over which bandwidth is counted
UNITS = 1e4  # of which the programs make all there is to gain: far from a solver's tolerance
FAR = 40  # windows that are told apart for each copy
SMALL = 0.02  # of the fast memory: windows of copies of less are not told apart

Numbers = Sequence[float] | np.ndarray


class Relaxation:
    """Maximize the sum of all g subject to A v ≤ b, 0 ≤ v ≤ upper."""

    def __init__(self, flat: FlatProblem) -> None:
        self.f, self.count, self.steps = flat, len(flat.size), len(flat.supply)
        self.upper = [1.0] * (2 * self.count + self.steps)
        self.rows: list[tuple[Numbers, Numbers]] = []  # columns, coefficients
        self.limits: list[float] = []
        self.until = np.concatenate([[0], np.cumsum(flat.supply)])
        self.tensors: dict[int, list[int]] = {}
        for i, x in enumerate(flat.tensor.tolist()):
            self.tensors.setdefault(x, []).append(i)
        self.stays()
        self.wide_windows()
        self.copies = {i: x for i in range(self.count) if (x := self.copy(i)) is not None}
        self.one_at_a_time()
        self.bandwidth()
        self.room()
        self.gains()

    def inside(self, index: int) -> int:
        """The column x of buffer i; that of c is i."""
        return self.count + index

    def column(self) -> int:
        self.upper.append(1.0)
        return len(self.upper) - 1

    def add(self, row: Mapping[int, float], limit: float) -> None:
        self.rows.append((list(row), list(row.values())))
        self.limits.append(limit)

    def stays(self) -> None:
        """Require that a buffer without a copy was there at the last use, or is an output."""
        f = self.f
        for uses in self.tensors.values():
            for k, i in enumerate(uses):
                self.stay(i, uses[k - 1] if k else None)
            if f.output[uses[0]]:  # what is nowhere else is read where it is
                x, c = self.inside(uses[0]), uses[0]
                for j in uses[1:]:
                    self.add({x: 1, c: -1, self.inside(j): -1, j: 1}, 0)
        for k in np.nonzero(f.grouped)[0]:
            members = f.members[f.member_at[k] : f.member_at[k + 1]].tolist()
            for i, j in pairwise(members):
                self.add({self.inside(i): 1, self.inside(j): -1}, 0)
                self.add({self.inside(j): 1, self.inside(i): -1}, 0)

    def stay(self, index: int, before: int | None) -> None:
        f, x, c = self.f, self.inside(index), index
        self.add({c: 1, x: -1}, 0)
        if f.size[index] > f.problem.fast_size:
            self.upper[x] = 0
        if f.live_out[index] if f.output[index] else before is None:
            self.add({x: 1, c: -1}, 0)
        elif before is not None:
            self.add({x: 1, c: -1, self.inside(before): -1}, 0)

    def span(self, index: int) -> tuple[int, int]:
        """The steps in which a copy of buffer i must lie; the end is exclusive."""
        f, t = self.f, int(self.f.at[index])
        if f.output[index]:
            return t + 1, int(f.evict_by[index]) + 1
        first = self.tensors[int(f.tensor[index])][0]
        return (0 if f.live_in[f.tensor[index]] else int(f.at[first]) + 1), t

    def wide_windows(self) -> None:
        """Copies that must lie within a window do not take longer than it has."""
        spans = np.array([self.span(i) for i in range(self.count)])
        spare = self.until[np.maximum(spans[:, 1], spans[:, 0])] - self.until[spans[:, 0]]
        for i in np.nonzero(self.f.demand > spare)[0].tolist():
            self.upper[i] = 0
        ends = np.unique(np.linspace(0, self.steps, WINDOWS + 1).astype(int))
        dense = np.unique(np.linspace(0, self.steps, 120).astype(int))
        pairs = {(int(a), int(b)) for a in ends for b in ends if a < b}
        pairs |= {(0, int(b)) for b in dense if b} | {(int(a), self.steps) for a in dense}
        for a, b in sorted(pairs):
            within = np.nonzero((spans[:, 0] >= a) & (spans[:, 1] <= b))[0]
            self.moves(a, b, within, self.f.demand[within])

    def moves(self, start: int, end: int, columns: np.ndarray, times: np.ndarray) -> None:
        """Copies take no longer in the steps [a, b) than there is time for them."""
        time = int(self.until[end] - self.until[start])
        if time and times[times > 0].sum() > time:
            self.rows.append((columns, times / time))
            self.limits.append(1.0)

    def copy(self, index: int) -> CopyWindow | None:
        """The windows that a copy may have; None if there can be none, or it takes no time."""
        f, back = self.f, not self.f.output[index]
        if not self.upper[index] or not f.demand[index]:
            return None
        low, high = self.span(index)
        away, limit = (-1, low) if back else (1, high - 1)
        first = nearest(f, self.until, index)
        told = FAR if f.size[index] >= SMALL * f.problem.fast_size else 0
        far = np.arange(first, first + away * (min(told, abs(limit - first)) + 1), away)
        columns = [index, *(self.column() for _ in far[1:])]
        for near, farther in pairwise(columns):
            self.add({farther: 1, near: -1}, 0)
        near = int(f.at[index]) + away
        return CopyWindow(index, back, near, far, np.array(columns), limit)

    def one_at_a_time(self) -> None:
        """Allow one of the copies that share a step and the next."""
        for columns in crossings(list(self.copies.values())):
            self.add(dict.fromkeys(columns, 1.0), 1.0)

    def bandwidth(self) -> None:
        """Allow no more moves in a few steps than there is time for."""
        moved = Bandwidth(self.f, self.until, list(self.copies.values()))
        for width in range(1, NARROW + 1):
            for a in range(self.steps - width + 1):
                self.moves(a, a + width, *moved.within(a, a + width))

    def room(self) -> None:
        """Require room for everything at a step; a storage takes it once."""
        self.taken: list[dict[int, list[Row]]] = [{} for _ in range(self.steps)]
        for i in range(self.count):
            self.takes(int(self.f.at[i]), i, {self.inside(i): 1.0})
        for uses in self.tensors.values():
            for s, column in self.arrives(uses[0], 0).items():
                self.takes(s, uses[0], {column: 1.0})
            for p, q in pairwise(uses):
                self.between(p, q)
            self.leaves(uses)
        scale = max(1, self.f.problem.fast_size)
        size = dict(zip(self.f.storage.tolist(), self.f.size.tolist(), strict=True))
        for taken in self.taken:
            row: Row = {}
            for storage, ways in taken.items():
                for v, x in self.either(ways).items():
                    row[v] = row.get(v, 0.0) + x * size[storage] / scale
            if sum(x for x in row.values() if x > 0) * scale > self.f.problem.fast_size:
                self.add(row, self.f.problem.fast_size / scale)

    def takes(self, step: int, index: int, row: Row) -> None:
        ways = self.taken[step].setdefault(int(self.f.storage[index]), [])
        if row not in ways:
            ways.append(row)

    def either(self, ways: list[Row]) -> Row:
        """A column that is at least each of these rows."""
        if len(ways) == 1:
            return ways[0]
        most = self.column()
        for row in ways:
            self.add({**row, most: -1.0}, 0)
        return {most: 1.0}

    def arrives(self, index: int, after: int) -> dict[int, int]:
        """Steps from `after` on, and the column that says that an operand's copy has begun."""
        copy = self.copies.get(index)
        if copy is None or not copy.backwards:
            return {}
        return {s: column for s, column in copy.taken() if s >= after}

    def departs(self, index: int, before: int) -> dict[int, int]:
        """Steps before `before`, and the column that says that an output's copy is not over."""
        copy = self.copies.get(index)
        if copy is None or copy.backwards:
            return {}
        return {s: column for s, column in copy.taken() if s < before}

    def between(self, earlier: int, later: int) -> None:
        """Between two uses a tensor stays or arrives; before it arrives it may depart."""
        start, end = int(self.f.at[earlier]) + 1, int(self.f.at[later])
        arriving, departing = self.arrives(later, start), self.departs(earlier, end)
        for s in range(start, end):
            comes: Row = {arriving[s]: 1.0} if s in arriving else {}
            stays: Row = {self.inside(later): 1.0, later: -1.0}
            stays |= {v: x + stays.get(v, 0.0) for v, x in comes.items()}
            self.takes(s, later, {v: x for v, x in stays.items() if x})
            if s in departing:
                self.takes(s, later, {departing[s]: 1.0, **comes})

    def leaves(self, uses: list[int]) -> None:
        """After the last use: an output stays until its end, or departs if it is not used."""
        f, made, last = self.f, uses[0], int(self.f.at[uses[-1]])
        if not f.output[made]:
            return
        departing = self.departs(made, self.steps) if len(uses) == 1 else {}
        end = -1 if f.live_out[made] else int(f.life_end[made])
        for s in range(last + 1, max(end, *departing, last) + 1):
            leaves: Row = {departing[s]: 1.0} if s in departing else {}
            stays: Row = {self.inside(made): 1.0, made: -1.0} if s <= end else {}
            row = {v: leaves.get(v, 0.0) + stays.get(v, 0.0) for v in {**leaves, **stays}}
            self.takes(s, made, {v: x for v, x in row.items() if x})

    def gains(self) -> None:
        """An instruction gains no more than its buffers together, and no more than there is."""
        f = self.f
        self.per_buffer = np.maximum(f.gain * f.times[f.at], 0).astype(float)
        self.per_step = np.zeros(self.steps)
        for t, uses in enumerate(f.problem.uses):
            cost = f.problem.instructions[t].cost
            if isinstance(cost, Latency):
                self.table(t, cost, uses)
            else:
                traffic, gain = f.traffic[t], int(np.maximum(f.gain[list(uses)], 0).sum())
                slow, fast = max(f.compute[t], traffic), max(f.compute[t], traffic - gain)
                self.per_step[t] = f.times[t] * (slow - fast)
        self.unit = max(1, self.most()) / UNITS
        for t, uses in enumerate(f.problem.uses):
            g = 2 * self.count + t
            self.upper[g] = float(self.per_step[t]) / self.unit
            self.add({g: 1.0, **{self.inside(i): -self.per_buffer[i] / self.unit for i in uses}}, 0)

    def table(self, step: int, cost: Latency, uses: tuple[int, ...]) -> None:
        """Each buffer gains at most its largest difference, whatever else is inside."""
        self.per_buffer[list(uses)] = 0
        at = cost.latencies
        for k, j in enumerate(cost.varied):
            gain = max(at[m] - at[m | 1 << k] for m in range(len(at)) if not m >> k & 1)
            self.per_buffer[uses[j]] = max(0, gain)
        self.per_step[step] = at[0] - min(at)

    def most(self) -> int:
        """The reward of placing everything wherever it gains."""
        return int(self.per_step.sum())

    def matrix(self) -> csr_matrix:
        """A, sparse."""
        from scipy.sparse import csr_matrix

        starts = np.cumsum([0, *(len(columns) for columns, _ in self.rows)])
        columns = np.concatenate([x for x, _ in self.rows]).astype(int)
        values = np.concatenate([x for _, x in self.rows]).astype(float)
        return csr_matrix((values, columns, starts), shape=(len(self.rows), len(self.upper)))
