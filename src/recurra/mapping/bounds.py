"""Upper bounds on the reward: what no mapping that holds can exceed.

A linear relaxation of the constraints, in which addresses and the order of copies are left out. For
each buffer b: x says that its tensor is in fast memory at its step, c that it is copied there, and
x - c that it stays from the use before. Bandwidth is counted over windows of steps, room at each
step, the gain of an instruction as the smaller of its gains' sum and all there is to gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from recurra.mapping.flat import Flat, flat
from recurra.memory.problem import Problem, Table

Which = Literal["lp", "milp", "auto"]
SMALL = 800  # buffers up to which integers are asked for
WINDOWS = 24  # ends of windows of steps over which bandwidth is counted
UNITS = 1e4  # of which the programs make all there is to gain: far from a solver's tolerance


@dataclass(frozen=True)
class Bound:
    """No mapping has a larger reward, in picoseconds; `how` it was found."""

    reward: int
    how: Literal["everything", "lp", "milp"]


def bound(problem: Problem, which: Which = "auto", seconds: float = 60.0) -> Bound:
    """The bound that can be had in this time; at worst the reward of placing everything."""
    if which == "auto":
        which = "milp" if len(problem.buffers) <= SMALL else "lp"
    program = _Program(flat(problem))
    most = program.most()
    found = program.solved(which == "milp", seconds)
    if found is None and which == "milp":
        which, found = "lp", program.solved(False, seconds)
    if found is None or found >= most:
        return Bound(most, "everything")
    return Bound(found, which)


class _Program:
    """Maximise c·v subject to A v ≤ b, 0 ≤ v ≤ upper; v holds c and x per buffer, g per step."""

    def __init__(self, f: Flat) -> None:
        self.f, self.count, self.steps = f, len(f.size), len(f.supply)
        self.upper = np.ones(2 * self.count + self.steps)
        self.rows: list[dict[int, float]] = []
        self.limits: list[float] = []
        self.until = np.concatenate([[0], np.cumsum(f.supply)])
        self.tensors: dict[int, list[int]] = {}
        for i, x in enumerate(f.tensor.tolist()):
            self.tensors.setdefault(x, []).append(i)
        # storage -> a buffer that takes room then, and if only while it is not copied
        self.taken: list[dict[int, tuple[int, bool]]] = [{} for _ in range(self.steps)]
        self.stays()
        self.windows()
        self.room()
        self.gains()

    def copied(self, i: int) -> int:
        return i

    def inside(self, i: int) -> int:
        return self.count + i

    def add(self, row: dict[int, float], limit: float) -> None:
        self.rows.append(row)
        self.limits.append(limit)

    def stays(self) -> None:
        """What is not copied has been there at the use before, or is an output that stays."""
        f = self.f
        for uses in self.tensors.values():
            for k, i in enumerate(uses):
                before = uses[k - 1] if k else None
                self.stay(i, before)
            if f.output[uses[0]]:  # what is nowhere else is read where it is
                x, c = self.inside(uses[0]), self.copied(uses[0])
                for j in uses[1:]:
                    self.add({x: 1, c: -1, self.inside(j): -1, self.copied(j): 1}, 0)
        for k in np.nonzero(f.grouped)[0]:
            members = f.members[f.member_at[k] : f.member_at[k + 1]].tolist()
            for i, j in pairwise(members):
                self.add({self.inside(i): 1, self.inside(j): -1}, 0)
                self.add({self.inside(j): 1, self.inside(i): -1}, 0)

    def stay(self, i: int, before: int | None) -> None:
        f, x, c = self.f, self.inside(i), self.copied(i)
        self.add({c: 1, x: -1}, 0)
        if f.size[i] > f.problem.fast_size:
            self.upper[x] = 0
        if f.wanted[i] if f.output[i] else before is None:
            self.add({x: 1, c: -1}, 0)
        elif before is not None:
            self.add({x: 1, c: -1, self.inside(before): -1}, 0)

    def span(self, i: int) -> tuple[int, int]:
        """The steps in which a copy of buffer i must lie; the end is exclusive."""
        f, t = self.f, int(self.f.at[i])
        if f.output[i]:
            return t + 1, int(f.evict_by[i]) + 1
        first = self.tensors[int(f.tensor[i])][0]
        return (0 if f.exists[f.tensor[i]] else int(f.at[first]) + 1), t

    def windows(self) -> None:
        """Copies that must lie within a window do not take longer than it has."""
        spans = np.array([self.span(i) for i in range(self.count)])
        spare = self.until[np.maximum(spans[:, 1], spans[:, 0])] - self.until[spans[:, 0]]
        self.upper[: self.count][self.f.demand > spare] = 0
        ends = np.unique(np.linspace(0, self.steps, WINDOWS + 1).astype(int))
        dense = np.unique(np.linspace(0, self.steps, 120).astype(int))
        pairs = {(int(a), int(b)) for a in ends for b in ends if a < b}
        pairs |= {(0, int(b)) for b in dense if b} | {(int(a), self.steps) for a in dense}
        for a, b in sorted(pairs):
            within = np.nonzero((spans[:, 0] >= a) & (spans[:, 1] <= b))[0]
            time = self.until[b] - self.until[a]
            if time and self.f.demand[within].sum() > time:
                shares = self.f.demand[within] / time
                self.add(dict(zip(within.tolist(), shares, strict=True)), 1.0)

    def room(self) -> None:
        """What certainly takes room at a step fits."""
        f = self.f
        for i in range(self.count):
            self.takes(i, int(f.at[i]), int(f.at[i]) + 1)
        for i in range(self.count):
            self.copies(i)
        for uses in self.tensors.values():
            for p, i in pairwise(uses):
                self.stayed(i, int(f.at[p]) + 1, int(f.at[i]))
            if f.output[uses[0]]:
                last = int(f.at[uses[-1]])
                self.stayed(uses[0], last + 1, int(f.life_end[uses[0]]) + 1)
        for taken in self.taken:
            row: dict[int, float] = {}
            for i, alone in taken.values():
                row[self.inside(i)] = row.get(self.inside(i), 0.0) + float(f.size[i])
                if alone:
                    row[self.copied(i)] = -float(f.size[i])
            if sum(x for x in row.values() if x > 0) > f.problem.fast_size:
                scale = max(1, f.problem.fast_size)
                self.add({v: x / scale for v, x in row.items()}, f.problem.fast_size / scale)

    def takes(self, i: int, start: int, end: int) -> None:
        """Buffer i, if its tensor is inside at its step, takes room in these; once per storage."""
        for t in range(start, end):
            self.taken[t].setdefault(int(self.f.storage[i]), (i, False))

    def stayed(self, i: int, start: int, end: int) -> None:
        """The same if it is inside and not copied: x - c."""
        for t in range(start, end):
            self.taken[t].setdefault(int(self.f.storage[i]), (i, True))

    def copies(self, i: int) -> None:
        """A copy takes room for as long as it takes at the least; so does what stays instead."""
        f, t = self.f, int(self.f.at[i])
        if f.output[i]:
            end = int(np.searchsorted(self.until, self.until[t + 1] + f.demand[i]))
            stop = min([end, self.steps, *(int(f.at[j]) for j in self.later(i)[:1])])
            if not self.later(i) and not f.wanted[i]:  # what stays may die before the copy ends
                stop = min(stop, int(f.life_end[i]) + 1)
            self.takes(i, t + 1, stop)
        else:
            start = int(np.searchsorted(self.until, self.until[t] - f.demand[i], "right")) - 1
            before = [int(f.at[j]) for j in self.tensors[int(f.tensor[i])] if f.at[j] < t]
            self.takes(i, max([start, 0, *(b + 1 for b in before[-1:])]), t)

    def later(self, i: int) -> list[int]:
        return [j for j in self.tensors[int(self.f.tensor[i])] if self.f.at[j] > self.f.at[i]]

    def gains(self) -> None:
        """An instruction gains no more than its buffers together, and no more than there is."""
        f = self.f
        self.per_buffer = np.maximum(f.gain * f.times[f.at], 0).astype(float)
        self.per_step = np.zeros(self.steps)
        for t, uses in enumerate(f.problem.uses):
            cost = f.problem.instructions[t].cost
            if isinstance(cost, Table):
                self.table(t, cost, uses)
            else:
                traffic, gain = f.traffic[t], int(np.maximum(f.gain[list(uses)], 0).sum())
                slow, fast = max(f.compute[t], traffic), max(f.compute[t], traffic - gain)
                self.per_step[t] = f.times[t] * (slow - fast)
        self.unit = max(1, self.most()) / UNITS
        self.upper[2 * self.count :] = self.per_step / self.unit
        for t, uses in enumerate(f.problem.uses):
            row = {self.inside(i): -self.per_buffer[i] / self.unit for i in uses}
            self.add({2 * self.count + t: 1.0, **row}, 0)

    def table(self, t: int, cost: Table, uses: tuple[int, ...]) -> None:
        """Each buffer gains at most its largest difference, whatever else is inside."""
        self.per_buffer[list(uses)] = 0
        at = cost.latencies
        for k, j in enumerate(cost.varied):
            gain = max(at[m] - at[m | 1 << k] for m in range(len(at)) if not m >> k & 1)
            self.per_buffer[uses[j]] = max(0, gain)
        self.per_step[t] = at[0] - min(at)

    def most(self) -> int:
        """The reward of placing everything wherever it gains."""
        return int(self.per_step.sum())

    def solved(self, integers: bool, seconds: float) -> int | None:
        """The optimum, and a millionth for the solver's tolerance; None if time is over."""
        from scipy.optimize import Bounds, LinearConstraint, linprog, milp
        from scipy.sparse import csr_matrix

        objective = np.zeros(len(self.upper))
        objective[2 * self.count :] = -1
        at = np.array([k for k, row in enumerate(self.rows) for _ in row])
        columns = np.array([v for row in self.rows for v in row])
        values = np.array([x for row in self.rows for x in row.values()], float)
        shape = (len(self.rows), len(self.upper))
        matrix: Any = csr_matrix((values, (at, columns)), shape=shape)
        limits = np.array(self.limits)
        if integers:
            sides: Any = (0.0, self.upper)
            below: Any = limits
            whole = np.zeros(len(self.upper))
            whole[: 2 * self.count] = 1
            result: Any = milp(
                objective,
                constraints=LinearConstraint(matrix, -np.inf, below),
                bounds=Bounds(*sides),
                integrality=whole,
                options={"time_limit": seconds},
            )
            best = getattr(result, "mip_dual_bound", None)
        else:
            sides = np.stack([np.zeros_like(self.upper), self.upper], 1)
            options: Any = {"time_limit": seconds}
            result = linprog(
                objective, A_ub=matrix, b_ub=limits, bounds=sides, method="highs", options=options
            )
            best = result.fun if result.status == 0 else None
        if best is None or not np.isfinite(best):
            return None
        return int(-best * self.unit + 1e-6 * self.most())
