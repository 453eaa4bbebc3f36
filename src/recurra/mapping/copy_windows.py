"""The time windows of copies, as columns of a linear program.

A copy of an operand ends before its step, one of an output begins after it: one end of its window
is fixed. Columns give the other end, nearest first: the k-th is 1 if the window goes at least as
far as its k-th step; the first is c, that there is a copy at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recurra.mapping.struct_of_arrays import FlatProblem, Ints

NARROW = 3  # windows of at most this many steps are counted exactly


@dataclass(frozen=True)
class CopyWindow:
    """The windows [first, end) of steps that a copy may have, the nearest far side first.

    The last one also stands for all longer windows: their far side is at `limit`.
    """

    buffer: int
    backwards: bool  # an operand's: the far side is where it begins
    near: int  # the fixed side: the last step of an operand's copy, the first of an output's
    far: Ints  # the far steps
    columns: Ints
    limit: int  # the farthest possible step

    def steps(self) -> Iterator[tuple[int, int]]:
        """Yield steps, and the column that is 1 if the window has them; the nearest first."""
        away = -1 if self.backwards else 1
        for s in range(self.near, int(self.far[-1]) + away, away):
            k = max(0, (s - int(self.far[0])) * away)
            yield s, int(self.columns[k])


def nearest(flat: FlatProblem, until: Ints, index: int) -> int:
    """Return the far step of the shortest window in which a buffer can be copied."""
    t, demand = int(flat.at[index]), int(flat.demand[index])
    if flat.output[index]:
        return max(t + 1, int(np.searchsorted(until, until[t + 1] + demand)) - 1)
    return min(t - 1, int(np.searchsorted(until, until[t] - demand, "right")) - 1)


def crossings(copies: list[CopyWindow]) -> list[list[int]]:
    """Return the sets of columns of copies that share a step and the next: one at most is 1."""
    across: dict[int, list[int]] = {}
    for copy in copies:
        for s, column in copy.steps():
            if s != copy.near:
                across.setdefault(s if copy.backwards else s - 1, []).append(column)
    sets = {tuple(sorted(columns)): columns for columns in across.values() if len(columns) > 1}
    return list(sets.values())


class Bandwidth:
    """The time that copies need at least within some steps, whichever windows they have."""

    def __init__(self, flat: FlatProblem, until: Ints, copies: list[CopyWindow]) -> None:
        self.until = until
        counts = [len(x.far) for x in copies]
        ends = [np.append(x.far[:-1], x.limit) for x in copies]
        far = np.concatenate(ends) if ends else np.zeros(0, int)
        back = np.repeat(np.array([x.backwards for x in copies], bool), counts)
        near = np.repeat(np.array([x.near for x in copies], int), counts)
        self.first, self.end = np.where(back, far, near), np.where(back, near, far) + 1
        self.demand = np.repeat(flat.demand[[x.buffer for x in copies]], counts)
        self.column = np.concatenate([x.columns for x in copies]) if copies else far
        self.new = np.zeros(len(far), bool)  # the first window of a copy
        self.new[np.cumsum([0, *counts])[:-1]] = True
        self.spare = until[self.end] - until[self.first] - self.demand  # supply beyond the demand
        widest = (np.flatnonzero(self.new)[1:] - 1, [len(far) - 1] if len(far) else [])
        widest = np.concatenate(widest).astype(int)
        self.reach = np.repeat(self.first[widest], counts), np.repeat(self.end[widest], counts)

    def within(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Return columns and coefficients of the time that is needed in steps [start, stop)."""
        k = np.flatnonzero((self.reach[0] < stop) & (self.reach[1] > start))
        first, end = np.maximum(self.first[k], start), np.minimum(self.end[k], stop)
        inside = np.maximum(self.until[np.maximum(end, first)] - self.until[first], 0)
        inside = np.maximum(inside - self.spare[k], 0)
        before = np.where(self.new[k], 0, np.append(0, inside[:-1]))
        change = inside - before
        moved = change != 0
        return self.column[k][moved], change[moved]
