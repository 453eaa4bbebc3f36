"""Contestants in, checked and paired rows out: an answer is compared before any time is taken.

The shape of `report` is the one that `python -m benchmarks NAME --json` prints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine
from benchmarks.pairs import Clock, interleaved, ratio
from recurra.errors import RecurraError

Checked = Literal["exact", "work", "none", "differs", "failed"]
Answer = Mapping[str, NDArray[Any]]

PAIRS, QUICK_PAIRS = 20, 6
TOLERANCE = 1e-3  # of the largest number of an array: f32 sums of 10^5 terms in another order


class Disagreement(RecurraError):
    """Two contestants that do not compute the same: their times are not comparable."""

    exit_code = 1  # a failure, not wrong input


@dataclass(frozen=True)
class Case:
    """What is timed, at which sizes, on how many cores and by which clock."""

    sizes: str
    metric: str = "iteration_ms"
    threads: int = 1
    clock: Clock = "cpu"
    limit: float | None = None

    def __str__(self) -> str:
        return f"{self.sizes} {self.threads}T" + (" wall" if self.clock == "wall" else "")


@dataclass(frozen=True)
class Contestant:
    """A program to time: `run(k)` runs k more iterations and blocks.

    `answer()` starts afresh and gives the numbers to agree on. Integers are counts of work and
    always compared; the rest only between contestants with `same_draws` of random numbers.
    """

    name: str
    run: Callable[[int], Any]
    answer: Callable[[], Answer]
    same_draws: bool = True


@dataclass(frozen=True)
class Row:
    """One line of a report; `ratio` > 1 always means that we are better."""

    case: str
    metric: str
    ours: float
    peer: str
    theirs: float
    ratio: float
    ci95: tuple[float, float]
    limit: float | None
    checked: Checked


def compare(
    case: Case,
    ours: Contestant,
    peers: Sequence[Contestant],
    *,
    pairs: int = PAIRS,
    iterations: int = 8,
    tolerance: float = TOLERANCE,
) -> list[Row]:
    """One row per peer; raises `Disagreement`, before any time is taken, if an answer differs."""
    answer = ours.answer()
    checked: list[Checked] = [
        check((ours, answer), (peer, peer.answer()), tolerance) for peer in peers
    ]
    for peer, how in zip(peers, checked, strict=True):
        progress(f"{case}: {peer.name}: checked {how}")
    progress(f"{case}: timing {len(peers) + 1} programs, {pairs} rounds of {iterations} iterations")
    runs = [contestant.run for contestant in (ours, *peers)]
    ms = interleaved(runs, iterations=iterations, rounds=pairs, clock=case.clock)
    return [
        paired(case, peer.name, ms[:, 0], theirs, how)
        for peer, theirs, how in zip(peers, ms[:, 1:].T, checked, strict=True)
    ]


def paired(
    case: Case, peer: str, ours: NDArray[np.float64], theirs: NDArray[np.float64], how: Checked
) -> Row:
    """The row of times [pairs] that were taken in turns, in milliseconds per iteration."""
    middle, ci95 = ratio(ours, theirs)
    ours_ms, theirs_ms = float(np.median(ours)), float(np.median(theirs))
    progress(f"{case}: {ours_ms:.2f} ms, {peer} {theirs_ms:.2f} ms, ratio {middle:.2f}")
    return Row(str(case), case.metric, ours_ms, peer, theirs_ms, middle, ci95, case.limit, how)


def without(case: str, metric: str, peer: str, why: Literal["differs", "failed"]) -> Row:
    """The row of who has no time: it does not compute what we do, or does not run."""
    return Row(case, metric, 0.0, peer, 0.0, 0.0, (0.0, 0.0), None, why)


def row_of(row: dict[str, Any]) -> Row:
    """A row that came by JSON."""
    fields: dict[str, Any] = row | {"ci95": tuple(row["ci95"])}
    return Row(**fields)


def failures(rows: Sequence[Row]) -> list[Row]:
    """Those without a time."""
    return [row for row in rows if row.checked in ("differs", "failed")]


def check(
    ours: tuple[Contestant, Answer], theirs: tuple[Contestant, Answer], tolerance: float = TOLERANCE
) -> Checked:
    """How far two answers agree, or `Disagreement`: every array within tolerance · its largest."""
    (us, x), (them, y) = ours, theirs
    exact = us.same_draws and them.same_draws
    keys = [k for k in sorted(x.keys() | y.keys()) if exact or _counts(x.get(k, y.get(k)))]
    for k in keys:
        if k not in x or k not in y:
            raise _disagreement(us, them, k, f"only {us.name if k in x else them.name} has it")
        if (error := _error(x[k], y[k])) > (0.0 if _counts(x[k]) else tolerance):
            raise _disagreement(us, them, k, f"relative difference {error:.1e}")
    return ("exact" if exact else "work") if keys else "none"


def _counts(x: NDArray[Any] | None) -> bool:
    return np.issubdtype(np.asarray(x).dtype, np.integer)


def _error(x: NDArray[Any], y: NDArray[Any]) -> float:
    """max |x - y| relative to the largest; infinite for another shape or what is not finite."""
    if x.shape != y.shape or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return np.inf
    a, b = x.astype(np.float64), y.astype(np.float64)
    difference = np.abs(a - b).max(initial=0.0)
    return float(difference / max(np.abs(a).max(), np.abs(b).max())) if difference else 0.0


def _disagreement(us: Contestant, them: Contestant, key: str, facts: str) -> Disagreement:
    return Disagreement(
        f"{us.name} and {them.name} do not agree on {key}: no time is taken", facts=facts
    )


def progress(text: str) -> None:
    """Tell a person how far the bench is; standard output is for the report."""
    print(text, file=sys.stderr, flush=True)


def report(name: str, rows: Sequence[Row], load: float) -> dict[str, Any]:
    """The JSON object of a bench; `load` is `machine.load()` from before the first timing."""
    return {
        "bench": name,
        "commit": machine.commit(),
        "machine": machine.describe(),
        "load": load,
        "idle": load < machine.IDLE_LOAD,
        "rows": [asdict(row) | {"ci95": list(row.ci95)} for row in rows],
    }


def table(rows: Sequence[Row]) -> str:
    """A line for each row: both medians, their ratio with its interval, and how it was checked."""
    return "\n".join(
        f"{row.case:<24} {row.metric}  ours {row.ours:.3g}  {row.peer} {row.theirs:.3g}  "
        f"ratio {row.ratio:.2f} [{row.ci95[0]:.2f}, {row.ci95[1]:.2f}]  checked {row.checked}"
        for row in rows
    )
