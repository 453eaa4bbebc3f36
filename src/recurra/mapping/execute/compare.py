"""Simulated steps beside measured ones: the same answers, in turns with the measuring of prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recurra.errors import RecurraError
from recurra.mapping.execute.costs import Gauge, MeasuredCosts
from recurra.mapping.execute.layout import problem_of
from recurra.mapping.execute.memories import Memory
from recurra.mapping.execute.run import RAM, PreparedWorkload, Times
from recurra.mapping.execute.tables import Tables
from recurra.mapping.execute.workload import Array, Workload, unmapped
from recurra.mapping.simulate import simulate
from recurra.storage.mapping_problem import Problem, Solution

STEADY = 0.1  # how far prices may differ from before a round to after it
FIRST = 4  # rounds of measuring before there are prices
Floats = NDArray[np.float64]
Answers = Callable[[Problem], Mapping[str, Solution]]


@dataclass(frozen=True)
class ComparedAnswer:
    """One answer: milliseconds of a step, by round; the parts of the measured ones."""

    answer: Solution
    share: float  # of all there is to gain
    simulated: Floats
    summed: Floats | None  # simulated without the tables, where there are some
    measured: Floats
    times: tuple[Times, ...]

    @property
    def middle(self) -> tuple[float, float]:
        """Medians: measured, simulated."""
        return float(np.median(self.measured)), float(np.median(self.simulated))

    @property
    def ratio(self) -> float:
        """Measured over simulated, the median of the rounds."""
        return float(np.median(self.measured / self.simulated))

    @property
    def without_tables(self) -> tuple[float, float] | None:
        """The simulated median and the ratio, if costs were sums."""
        if self.summed is None:
            return None
        return float(np.median(self.summed)), float(np.median(self.measured / self.summed))

    @property
    def spread(self) -> tuple[float, float]:
        """The measured steps of which a tenth is faster, a tenth slower."""
        low, high = np.quantile(self.measured, (0.1, 0.9))
        return float(low), float(high)

    def __str__(self) -> str:
        parts = [
            np.median([sum(part) for part in parts]) * 1e3
            for parts in zip(*((x.computed, x.moved, x.waited) for x in self.times), strict=True)
        ]
        return (
            f"{self.middle[0]:,.1f} ms measured ({self.spread[0]:,.1f} to "
            f"{self.spread[1]:,.1f}; {parts[0]:,.1f} computing, {parts[1]:,.1f} moving, "
            f"{parts[2]:,.1f} waiting), {self.middle[1]:,.1f} ms simulated, "
            f"ratio {self.ratio:.3f}{self._told()}"
        )

    def _told(self) -> str:
        sums = self.without_tables
        return "" if sums is None else f" (by sums {sums[0]:,.1f} ms, ratio {sums[1]:.3f})"


@dataclass(frozen=True)
class ComparedProblem:
    """A problem with measured prices, where its slow memory is, and a comparison by answer.

    With `tables` the problem has them, and beside the answers to it are those to the same problem
    whose costs are sums.

    `steady`: before and after how many rounds the instructions took the same time, to a tenth. Only
    these count, or all where they are fewer than three.
    """

    problem: Problem
    slow: str
    prices: MeasuredCosts
    tables: Tables | None
    steady: int
    comparisons: Mapping[str, ComparedAnswer]


def compare(
    workload: Workload,
    fast_size: int,
    answers: Answers,
    *,
    rounds: int = 9,
    memory: Memory = RAM,
    tabulate: Callable[[Gauge], Tables] | None = None,
) -> ComparedProblem:
    """Measures prices, asks for answers, and runs them all `rounds` times, in turns.

    `tabulate`: say `measure_tables`. A round's simulated step is that by the prices measured before
    and after it, so that a machine that others use, too, is as slow for both; tables are measured
    once, and scaled as these are. Raises `RecurraError` if a result is not the unmapped run's to
    the last bit.
    """
    wanted = unmapped(workload)
    with Gauge(workload, memory) as gauge:
        for _ in range(FIRST):
            gauge.round()
        tables = None if tabulate is None else tabulate(gauge)
        then = gauge.measured()
        summed = problem_of(workload, fast_size, then)
        problem = summed if tables is None else problem_of(workload, fast_size, then, tables)
        found = _answered(answers, problem, summed)
        runs = {
            k: PreparedWorkload(workload, problem, x, memory, gauge.slow) for k, x in found.items()
        }
        prices, times = [gauge.round()], list[dict[str, Times]]()
        for k in range(rounds):
            order = list(runs) if k % 2 == 0 else list(runs)[::-1]
            times.append({})
            for name in order:
                times[-1][name] = runs[name].run()
                _expect_same(f"{workload.name}, {name}", runs[name].results(), wanted)
            prices.append(gauge.round())
    steady = _steady(np.array([sum(x.instructions) for x in prices]))
    counted = steady if len(steady) > 2 else list(range(rounds))
    drags = [x.drag for x in prices]
    sums = [problem_of(workload, fast_size, x) for x in prices]
    problems = sums if tables is None else _tabled(workload, fast_size, prices, tables, then)
    comparisons: dict[str, ComparedAnswer] = {}
    for name, answer in found.items():
        steps = tuple(times[k][name] for k in counted)
        comparisons[name] = ComparedAnswer(
            answer,
            answer.reward(problem) / max(1, problem.total),
            _between_prices(problems, answer, drags)[counted],
            None if tables is None else _between_prices(sums, answer, drags)[counted],
            np.array([x.total * 1e3 for x in steps]),
            steps,
        )
    return ComparedProblem(
        problem, str(gauge.slow), gauge.measured(), tables, len(steady), comparisons
    )


def _steady(alone: Floats) -> list[int]:
    """The rounds before and after which a step alone takes the same time."""
    return np.nonzero(np.abs(np.log(alone[1:] / alone[:-1])) < STEADY)[0].tolist()


def _answered(answers: Answers, problem: Problem, summed: Problem) -> dict[str, Solution]:
    """Solve the problem, and with tables its twin by sums, as far as solutions differ."""
    found = dict(answers(problem))
    if problem is summed:
        return found
    other = {f"{k} by sums": x for k, x in answers(summed).items()}
    return found | {k: x for k, x in other.items() if x not in found.values()}


def _tabled(
    workload: Workload,
    fast_size: int,
    prices: Sequence[MeasuredCosts],
    tables: Tables,
    then: MeasuredCosts,
) -> list[Problem]:
    """The problem of each round, with the tables as they would be at its prices."""
    return [
        problem_of(workload, fast_size, now, tables.scaled(*now.beside(then))) for now in prices
    ]


def _between_prices(
    problems: Sequence[Problem], answer: Solution, drags: Sequence[float]
) -> Floats:
    """Milliseconds of a simulated step, by round: of the prices before it and after it."""
    ends = np.array(
        [
            simulate(problem, answer, contention=True, drag=drag).latency / 1e9
            for problem, drag in zip(problems, drags, strict=True)
        ]
    )
    return (ends[:-1] + ends[1:]) / 2


def _expect_same(who: str, found: tuple[Array, ...], wanted: tuple[Array, ...]) -> None:
    for k, (x, y) in enumerate(zip(found, wanted, strict=True)):
        if x.tobytes() != y.tobytes():
            raise RecurraError(
                f"{who}: result {k} is not that of the unmapped run",
                facts=f"{int((x != y).sum())} of {x.size} elements differ",
            )
