"""Simulate a mapping on a model of the machine: instructions in order, and one copy engine.

The engine may begin a copy at its first step and serves the earliest deadline; an instruction waits
for the copies that are due before it. Without contention a valid mapping never waits, if the supply
is no more than the latency: latency then falls as reward rises, by construction. With contention
copies advance only while the running instruction leaves the slow memory idle; finalists of a search
are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from recurra.storage.mapping_problem import Problem, Roofline, Solution, copy_steps, nothing


@dataclass(frozen=True)
class SimulatedRun:
    """A simulated run in picoseconds: each instruction's start, the waits, the total latency."""

    starts: tuple[int, ...]
    waited: tuple[int, ...]  # before each instruction, and after the last one
    latency: int

    @property
    def stalls(self) -> int:
        return sum(self.waited)


def simulate(
    problem: Problem, solution: Solution, *, contention: bool = False, drag: float = 0.0
) -> SimulatedRun:
    """Simulate a valid mapping.

    `drag`: the time that a second of copying adds to the instruction beside it, where the two share
    a processor.
    """
    released: list[list[tuple[int, int]]] = [[] for _ in range(problem.steps)]
    for b, p in zip(problem.buffers, solution.placements, strict=True):
        if p is not None and (steps := copy_steps(b, p)):
            released[steps[0]].append((steps[-1], b.demand))
    queue: list[list[int]] = []  # last step, remaining time; the earliest deadline first
    now, starts, waited = 0, [0] * problem.steps, [0] * (problem.steps + 1)
    for t in range(problem.steps):
        waited[t] = _finish(queue, t)
        now += waited[t]
        starts[t] = now
        queue = sorted([*queue, *([last, left] for last, left in released[t])])
        duration, idle = _duration(problem, solution, t)
        copied = _advance(queue, idle if contention else duration)
        now += duration + round(drag * copied)
    waited[-1] = _finish(queue, problem.steps)
    return SimulatedRun(tuple(starts), tuple(waited), now + waited[-1])


def _finish(queue: list[list[int]], step: int) -> int:
    """Finish all copies that are due before a step; return the time that this takes."""
    due = [left for last, left in queue if last < step]
    del queue[: len(due)]
    return sum(due)


def _advance(queue: list[list[int]], time: int) -> int:
    """Copy for `time`; return the part of it that was used."""
    left = time
    while queue and left >= queue[0][1]:
        left -= queue.pop(0)[1]
    if queue:
        queue[0][1] -= left
        return time
    return time - left


def _duration(problem: Problem, solution: Solution, step: int) -> tuple[int, int]:
    """Return an instruction's latency, and the part of it in which slow memory is idle.

    Without a cost, the supply is the latency with everything in fast memory.
    """
    uses = problem.uses[step]
    inside = [solution.placements[i] is not None for i in uses]
    cost = problem.instructions[step].cost
    if cost is None:
        missed = sum(problem.buffers[i].benefit for i, x in zip(uses, inside, strict=True) if not x)
        duration = problem.instructions[step].supply + missed
        return duration, duration
    duration = cost.latency(inside)
    if not isinstance(cost, Roofline):  # a table has no separate time of moving data
        return duration, min(duration, problem.instructions[step].supply)
    outside = sum(s for s, x in zip(cost.slow, inside, strict=True) if not x)
    return duration, max(0, duration - cost.times * outside)


def speedup(problem: Problem, solution: Solution, *, contention: bool = True) -> float:
    """Return how many times as fast a mapping is as everything in slow memory."""
    before = simulate(problem, nothing(problem), contention=contention).latency
    return before / max(1, simulate(problem, solution, contention=contention).latency)


def fastest(problem: Problem, finalists: Iterable[Solution]) -> Solution:
    """Return the solution that is fastest under contention; of equals the first."""
    return min(finalists, key=lambda s: simulate(problem, s, contention=True).latency)


def correlation(problem: Problem, solutions: Sequence[Solution]) -> float:
    """Return Pearson's correlation of rewards and latencies under contention.

    -1 is ideal; NaN if all are equal.
    """
    rewards = [float(s.reward(problem)) for s in solutions]
    latencies = [float(simulate(problem, s, contention=True).latency) for s in solutions]
    if len(set(rewards)) < 2 or len(set(latencies)) < 2:
        return float("nan")
    return float(np.corrcoef(rewards, latencies)[0, 1])
