"""Contests → tables in Markdown, as docs/mapping.md has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.mapping.runs import BASELINE, OURS, Contest
from recurra.mapping.simulate import correlation

Rows = Sequence[Sequence[str]]


def solved(contests: Sequence[Contest]) -> str:
    """A row per instance: medians over seeds, and in how many seeds the bound is reached."""
    head = ("instance", "buffers", "seeds", OURS, "least", "at most", "part of it", BASELINE)
    head = (*head, "default faster", "prod faster", "nearly there, s")
    rows = [_solved(c) for c in contests]
    means = [[_faster(c, who) for c in contests] for who in (OURS, "prod")]
    told = [f"{np.mean(x):.3f} (geometric {np.exp(np.mean(np.log(x))):.3f})" for x in means]
    return table(head, [*rows, ["mean", *[""] * 7, *told, ""]])


def _solved(contest: Contest) -> list[str]:
    mine = contest.shares(OURS)
    near = np.median([run.nearly() for run in contest.found[OURS]])
    middle = float(np.median(mine))
    numbers = (
        middle,
        float(mine.min()),
        contest.limit,
        middle / contest.limit,
        np.median(contest.shares(BASELINE)),
    )
    return [
        contest.problem.name,
        f"{len(contest.problem.buffers):,}",
        str(len(mine)),
        *(f"{x:.4f}" for x in numbers),
        *(f"{_faster(contest, who):.3f}" for who in (OURS, "prod")),
        f"{near:.2f}",
    ]


def beside(contests: Sequence[Contest]) -> str:
    """A row per instance: medians of all solvers' shares; who is above ours has a star."""
    who = [x for x in contests[0].found if x != "prod"]
    rows: list[list[str]] = []
    for c in contests:
        shares = [round(float(np.median(c.shares(x))), 4) for x in who]
        mine = shares[who.index(OURS)]
        cells = [f"{x:.4f}{'*' if x > mine else ''}" for x in shares]
        rows.append([c.problem.name, *cells, f"{correlation(c.problem, c.stages()):.4f}"])
    return table(("instance", *who, "correlation"), rows)


def _faster(contest: Contest, who: str) -> float:
    """Simulated steps of the baseline over those of a solver, the median of the seeds."""
    return float(np.median(contest.simulated(BASELINE) / contest.simulated(who)))


def learned(contests: Sequence[Contest], who: Sequence[str]) -> str:
    """A row per instance, a column per player: the median and the number of seeds."""
    rows: list[list[str]] = []
    for c in contests:
        shares = [c.shares(x) if c.found.get(x) else np.array([]) for x in who]
        cells = [f"{np.median(x):.4f} ({len(x)})" if len(x) else "" for x in shares]
        rows.append([f"{c.problem.name}, {c.seconds:g} s", *cells, f"{c.limit:.4f}"])
    return table(("instance", *who, "at most"), rows)


def table(head: Sequence[str], rows: Rows) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
