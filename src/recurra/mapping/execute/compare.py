"""Compare simulated with measured steps: solutions run in turns with measurements of prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recurra.errors import RecurraError
from recurra.mapping.execute.cost_measurement import Gauge, MeasuredCosts
from recurra.mapping.execute.latency_tables import Tables
from recurra.mapping.execute.memories import Memory
from recurra.mapping.execute.prepared_workload import RAM, PreparedWorkload, Times
from recurra.mapping.execute.workload import Array, Workload, run_unmapped
from recurra.mapping.execute.workload_problem import problem_of
from recurra.mapping.simulate import simulate
from recurra.storage.mapping_problem import Problem, Solution

STEADY = 0.1  # the largest change of log prices in a steady round
FIRST = 4  # rounds of measuring before the first prices
Floats = NDArray[np.float64]
Answers = Callable[[Problem], Mapping[str, Solution]]


@dataclass(frozen=True)
class ComparedAnswer:
    """One solution: milliseconds of a step by round, and the parts of the measured times."""

    answer: Solution
    share: float  # of all there is to gain
    simulated: Floats
    summed: Floats | None  # simulated without the tables, if there are some
    measured: Floats
    times: tuple[Times, ...]

    @property
    def medians(self) -> tuple[float, float]:
        """The medians: measured, simulated."""
        return float(np.median(self.measured)), float(np.median(self.simulated))

    @property
    def ratio(self) -> float:
        """Measured over simulated, the median of the rounds."""
        return float(np.median(self.measured / self.simulated))

    @property
    def without_tables(self) -> tuple[float, float] | None:
        """The simulated median and the ratio with costs that are sums."""
        if self.summed is None:
            return None
        return float(np.median(self.summed)), float(np.median(self.measured / self.summed))

    @property
    def spread(self) -> tuple[float, float]:
        """The first and the last decile of the measured steps."""
        low, high = np.quantile(self.measured, (0.1, 0.9))
        return float(low), float(high)

    def __str__(self) -> str:
        parts = [
            np.median([sum(part) for part in parts]) * 1e3
            for parts in zip(*((x.computed, x.moved, x.waited) for x in self.times), strict=True)
        ]
        sums = self.without_tables
        by_sums = "" if sums is None else f" (by sums {sums[0]:,.1f} ms, ratio {sums[1]:.3f})"
        return (
            f"{self.medians[0]:,.1f} ms measured ({self.spread[0]:,.1f} to "
            f"{self.spread[1]:,.1f}; {parts[0]:,.1f} computing, {parts[1]:,.1f} moving, "
            f"{parts[2]:,.1f} waiting), {self.medians[1]:,.1f} ms simulated, "
            f"ratio {self.ratio:.3f}{by_sums}"
        )


@dataclass(frozen=True)
class ComparedProblem:
    """A problem with measured prices, a description of its slow memory, and its compared solutions.

    With `tables`, the costs of the problem are these, and the solutions of the same problem whose
    costs are sums are compared, too. `steady`: the number of rounds before and after which the
    instructions took the same time, to a tenth. Only these count, or all if they are fewer than 3.
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
    """Measure prices, get solutions from `answers`, and run each `rounds` times, in turns.

    `tabulate`: measures tables, as `measure_tables` does. A round is simulated with the prices
    measured before and after it, so that other load on the machine slows down both; tables are
    measured once, and scaled with these prices. Raises `RecurraError` if a result differs from the
    unmapped run's in any bit.
    """
    expected = run_unmapped(workload)
    with Gauge(workload, memory) as gauge:
        for _ in range(FIRST):
            gauge.round()
        tables = None if tabulate is None else tabulate(gauge)
        first = gauge.measured()
        summed = problem_of(workload, fast_size, first)
        problem = summed if tables is None else problem_of(workload, fast_size, first, tables)
        solutions = _solve(answers, problem, summed)
        runs = {
            k: PreparedWorkload(workload, problem, x, memory, gauge.slow)
            for k, x in solutions.items()
        }
        prices, times = [gauge.round()], list[dict[str, Times]]()
        for k in range(rounds):
            order = list(runs) if k % 2 == 0 else list(runs)[::-1]
            times.append({})
            for name in order:
                times[-1][name] = runs[name].run()
                _expect_same(f"{workload.name}, {name}", runs[name].results(), expected)
            prices.append(gauge.round())
    changes = np.abs(np.diff(np.log([sum(x.instructions) for x in prices])))
    steady = np.flatnonzero(changes < STEADY).tolist()  # instructions take as long before as after
    counted = steady if len(steady) > 2 else list(range(rounds))
    drags = [x.drag for x in prices]
    problems = sums = [problem_of(workload, fast_size, x) for x in prices]
    if tables is not None:
        scaled = [tables.scaled(*x.relative_to(first)) for x in prices]
        pairs = zip(prices, scaled, strict=True)
        problems = [problem_of(workload, fast_size, x, table) for x, table in pairs]
    comparisons: dict[str, ComparedAnswer] = {}
    for name, answer in solutions.items():
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


def _solve(answers: Answers, problem: Problem, summed: Problem) -> dict[str, Solution]:
    """Solve the problem, and with tables its twin by sums, as far as solutions differ."""
    solutions = dict(answers(problem))
    if problem is summed:
        return solutions
    by_sums = {f"{k} by sums": x for k, x in answers(summed).items()}
    return solutions | {k: x for k, x in by_sums.items() if x not in solutions.values()}


def _between_prices(
    problems: Sequence[Problem], answer: Solution, drags: Sequence[float]
) -> Floats:
    """Return the simulated milliseconds by round: means of the prices before and after it."""
    ends = np.array(
        [
            simulate(problem, answer, contention=True, drag=drag).latency / 1e9
            for problem, drag in zip(problems, drags, strict=True)
        ]
    )
    return (ends[:-1] + ends[1:]) / 2


def _expect_same(name: str, results: tuple[Array, ...], expected: tuple[Array, ...]) -> None:
    for k, (x, y) in enumerate(zip(results, expected, strict=True)):
        if x.tobytes() != y.tobytes():
            raise RecurraError(
                f"{name}: result {k} is not that of the unmapped run",
                facts=f"{int((x != y).sum())} of {x.size} elements differ",
            )
