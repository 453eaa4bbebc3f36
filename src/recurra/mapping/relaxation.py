"""A linear program that every mapping satisfies: it has time, but no addresses.

Columns: for each buffer c, it is copied, and x, its tensor is in fast memory at its step (x - c: it
stays from the previous use); g, the gain of each instruction; then the windows of copies, and
memory that is used in one of two ways. Rows: residency; one copy at a time; bandwidth; capacity.
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
WINDOWS = 24  # wide windows of steps with bandwidth rows begin and end at so many steps
UNITS = 1e4  # the value of all there is to gain in the program: far above a solver's tolerance
FAR = 40  # the most distinct windows of a copy
SMALL = 0.02  # share of fast memory: copies of smaller buffers have one window

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
        self.add_residency()
        self.add_wide_windows()
        self.copies = {i: x for i in range(self.count) if (x := self.copy_window(i)) is not None}
        for columns in crossings(list(self.copies.values())):  # one copy at a time
            self.add(dict.fromkeys(columns, 1.0), 1.0)
        self.add_bandwidth()
        self.add_capacity()
        self.add_gains()

    def resident_variables(self, index: int) -> int:
        """The column x of a buffer; that of c is its index."""
        return self.count + index

    def new_column(self) -> int:
        self.upper.append(1.0)
        return len(self.upper) - 1

    def add(self, row: Mapping[int, float], limit: float) -> None:
        self.rows.append((list(row), list(row.values())))
        self.limits.append(limit)

    def add_residency(self) -> None:
        """Require that a buffer without a copy was in fast memory before, or is an output."""
        f = self.f
        for uses in self.tensors.values():
            for k, i in enumerate(uses):
                self.add_buffer(i, uses[k - 1] if k else None)
            if f.output[uses[0]]:  # without a copy in slow memory it is read in fast memory
                x, c = self.resident_variables(uses[0]), uses[0]
                for j in uses[1:]:
                    self.add({x: 1, c: -1, self.resident_variables(j): -1, j: 1}, 0)
        for k in np.nonzero(f.grouped)[0]:
            members = f.members[f.member_at[k] : f.member_at[k + 1]].tolist()
            for i, j in pairwise(members):
                self.add({self.resident_variables(i): 1, self.resident_variables(j): -1}, 0)
                self.add({self.resident_variables(j): 1, self.resident_variables(i): -1}, 0)

    def add_buffer(self, index: int, before: int | None) -> None:
        f, x, c = self.f, self.resident_variables(index), index
        self.add({c: 1, x: -1}, 0)
        if f.size[index] > f.problem.fast_size:
            self.upper[x] = 0
        if f.live_out[index] if f.output[index] else before is None:
            self.add({x: 1, c: -1}, 0)
        elif before is not None:
            self.add({x: 1, c: -1, self.resident_variables(before): -1}, 0)

    def span(self, index: int) -> tuple[int, int]:
        """The steps in which a copy of a buffer must lie; the end is exclusive."""
        f, t = self.f, int(self.f.at[index])
        if f.output[index]:
            return t + 1, int(f.evict_by[index]) + 1
        first = self.tensors[int(f.tensor[index])][0]
        return (0 if f.live_in[f.tensor[index]] else int(f.at[first]) + 1), t

    def add_wide_windows(self) -> None:
        """Limit the copies that must lie within a window of steps to its supply."""
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
            self.limit_copies(a, b, within, self.f.demand[within])

    def limit_copies(self, start: int, end: int, columns: np.ndarray, times: np.ndarray) -> None:
        """Limit the time of copies in steps [start, end) to the supply."""
        time = int(self.until[end] - self.until[start])
        if time and times[times > 0].sum() > time:
            self.rows.append((columns, times / time))
            self.limits.append(1.0)

    def copy_window(self, index: int) -> CopyWindow | None:
        """The windows that a copy may have; None if there is none, or it takes no time."""
        f, back = self.f, not self.f.output[index]
        if not self.upper[index] or not f.demand[index]:
            return None
        low, high = self.span(index)
        away, limit = (-1, low) if back else (1, high - 1)
        first = nearest(f, self.until, index)
        most = FAR if f.size[index] >= SMALL * f.problem.fast_size else 0
        far = np.arange(first, first + away * (min(most, abs(limit - first)) + 1), away)
        columns = [index, *(self.new_column() for _ in far[1:])]
        for near, farther in pairwise(columns):
            self.add({farther: 1, near: -1}, 0)
        near = int(f.at[index]) + away
        return CopyWindow(index, back, near, far, np.array(columns), limit)

    def add_bandwidth(self) -> None:
        """Limit the copies in a few steps to the supply."""
        moved = Bandwidth(self.f, self.until, list(self.copies.values()))
        for width in range(1, NARROW + 1):
            for a in range(self.steps - width + 1):
                self.limit_copies(a, a + width, *moved.within(a, a + width))

    def add_capacity(self) -> None:
        """Limit the storages in use at a step to the size of fast memory."""
        self.uses: list[dict[int, list[Row]]] = [{} for _ in range(self.steps)]
        for i in range(self.count):
            self.use_variable(int(self.f.at[i]), i, {self.resident_variables(i): 1.0})
        for uses in self.tensors.values():
            for s, column in self.arriving(uses[0], 0).items():
                self.use_variable(s, uses[0], {column: 1.0})
            for p, q in pairwise(uses):
                self.use_between(p, q)
            self.use_after(uses)
        scale = max(1, self.f.problem.fast_size)
        size = dict(zip(self.f.storage.tolist(), self.f.size.tolist(), strict=True))
        for in_use in self.uses:
            row: Row = {}
            for storage, ways in in_use.items():
                for v, x in self.any_of(ways).items():
                    row[v] = row.get(v, 0.0) + x * size[storage] / scale
            if sum(x for x in row.values() if x > 0) * scale > self.f.problem.fast_size:
                self.add(row, self.f.problem.fast_size / scale)

    def use_variable(self, step: int, index: int, row: Row) -> None:
        """Note that the storage of a buffer is in use at a step where a row is 1."""
        ways = self.uses[step].setdefault(int(self.f.storage[index]), [])
        if row not in ways:
            ways.append(row)

    def any_of(self, ways: list[Row]) -> Row:
        """A row that is at least each of these."""
        if len(ways) == 1:
            return ways[0]
        most = self.new_column()
        for row in ways:
            self.add({**row, most: -1.0}, 0)
        return {most: 1.0}

    def arriving(self, index: int, after: int) -> dict[int, int]:
        """Steps from `after` on, and the column that is 1 if an operand's copy has begun."""
        copy = self.copies.get(index)
        if copy is None or not copy.backwards:
            return {}
        return {s: column for s, column in copy.steps() if s >= after}

    def departing(self, index: int, before: int) -> dict[int, int]:
        """Steps before `before`, and the column that is 1 if an output's copy is not over."""
        copy = self.copies.get(index)
        if copy is None or copy.backwards:
            return {}
        return {s: column for s, column in copy.steps() if s < before}

    def use_between(self, earlier: int, later: int) -> None:
        """Between two uses a tensor stays or arrives; before it arrives it may depart."""
        start, end = int(self.f.at[earlier]) + 1, int(self.f.at[later])
        arriving, departing = self.arriving(later, start), self.departing(earlier, end)
        for s in range(start, end):
            arrives: Row = {arriving[s]: 1.0} if s in arriving else {}
            self.use_variable(
                s, later, _sum({self.resident_variables(later): 1.0, later: -1.0}, arrives)
            )
            if s in departing:
                self.use_variable(s, later, {departing[s]: 1.0, **arrives})

    def use_after(self, uses: list[int]) -> None:
        """After its last use an output stays until its end, or departs if it was never read."""
        f, output, last = self.f, uses[0], int(self.f.at[uses[-1]])
        if not f.output[output]:
            return
        departing = self.departing(output, self.steps) if len(uses) == 1 else {}
        end = -1 if f.live_out[output] else int(f.life_end[output])
        for s in range(last + 1, max(end, *departing, last) + 1):
            leaves: Row = {departing[s]: 1.0} if s in departing else {}
            stays: Row = {self.resident_variables(output): 1.0, output: -1.0} if s <= end else {}
            self.use_variable(s, output, _sum(leaves, stays))

    def add_gains(self) -> None:
        """Limit an instruction's gain to that of its buffers together, and to all there is."""
        f = self.f
        self.per_buffer = np.maximum(f.gain * f.times[f.at], 0).astype(float)
        self.per_step = np.zeros(self.steps)
        for t, uses in enumerate(f.problem.uses):
            cost = f.problem.instructions[t].cost
            if isinstance(cost, Latency):
                self.limit_table_gains(t, cost, uses)
            else:
                traffic, gain = f.traffic[t], int(np.maximum(f.gain[list(uses)], 0).sum())
                slow, fast = max(f.compute[t], traffic), max(f.compute[t], traffic - gain)
                self.per_step[t] = f.times[t] * (slow - fast)
        self.unit = max(1, self.objective_bound()) / UNITS
        for t, uses in enumerate(f.problem.uses):
            g = 2 * self.count + t
            self.upper[g] = float(self.per_step[t]) / self.unit
            self.add(
                {
                    g: 1.0,
                    **{self.resident_variables(i): -self.per_buffer[i] / self.unit for i in uses},
                },
                0,
            )

    def limit_table_gains(self, step: int, cost: Latency, uses: tuple[int, ...]) -> None:
        """Limit the gain of each buffer to its largest difference over all subsets."""
        self.per_buffer[list(uses)] = 0
        at = cost.latencies
        for k, j in enumerate(cost.varied):
            gain = max(at[m] - at[m | 1 << k] for m in range(len(at)) if not m >> k & 1)
            self.per_buffer[uses[j]] = max(0, gain)
        self.per_step[step] = at[0] - min(at)

    def objective_bound(self) -> int:
        """The reward of placing everything wherever it gains."""
        return int(self.per_step.sum())

    def matrix(self) -> csr_matrix:
        """The matrix A, sparse."""
        from scipy.sparse import csr_matrix

        starts = np.cumsum([0, *(len(columns) for columns, _ in self.rows)])
        columns = np.concatenate([x for x, _ in self.rows]).astype(int)
        values = np.concatenate([x for _, x in self.rows]).astype(float)
        return csr_matrix((values, columns, starts), shape=(len(self.rows), len(self.upper)))


def _sum(first: Row, second: Row) -> Row:
    """Return the sum of two rows, without zeros."""
    total = {v: first.get(v, 0.0) + second.get(v, 0.0) for v in {**first, **second}}
    return {v: x for v, x in total.items() if x}
