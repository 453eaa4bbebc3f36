"""Runs → one SVG: a panel per environment, a line per program, all its seeds as a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.episodes import LAST
from benchmarks.learning.runs import Run
from recurra.report.curves import ticks

WIDE, HIGH, EDGE, TOP = 420, 260, 56, 34  # of a panel, and around it
POINTS = 200
COLORS = ("#d1495b", "#30638e")
STYLE = "text{font:12px system-ui,sans-serif;fill:#444}.title{font-size:14px;font-weight:600}"

F64 = NDArray[np.float64]


def picture(runs: Sequence[Run], goals: Mapping[str, float]) -> str:
    """Mean return of the last hundred episodes over steps; the dashed line is the goal."""
    envs = list(dict.fromkeys(run.env for run in runs))
    panels = "".join(
        f'<g transform="translate({EDGE + k * (WIDE + EDGE + 16)} {TOP})">'
        f"{panel([r for r in runs if r.env == env], goals[env])}</g>"
        for k, env in enumerate(envs)
    )
    wide, high = len(envs) * (WIDE + EDGE + 16) + 16, TOP + HIGH + 44
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img">'
        f"<title>Returns of PPO over steps</title><style>{STYLE}</style>"
        f'<rect width="{wide}" height="{high}" fill="#fff"/>{panels}</svg>\n'
    )


def panel(runs: Sequence[Run], goal: float) -> str:
    """One environment."""
    at = np.linspace(0, max(run.steps for run in runs), POINTS + 1)[1:]
    sides = {who: [running(r, at) for r in runs if r.who == who] for who in _names(runs)}
    every = np.concatenate([np.concatenate(side) for side in sides.values()])
    low, high = min(np.nanmin(every), goal), max(np.nanmax(every), goal)
    low, high = float(low - 0.05 * (high - low)), float(high + 0.05 * (high - low))

    def x(steps: float) -> float:
        return WIDE * steps / float(at[-1])

    def y(value: float) -> float:
        return HIGH * (high - value) / (high - low)

    parts = [f'<text class="title" x="0" y="-12">{escape(runs[0].env)}</text>']
    for tick in ticks(low, high):
        parts.append(f'<path d="M0 {y(tick):.1f}H{WIDE}" stroke="#ddd"/>')
        parts.append(f'<text x="-8" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in ticks(0, float(at[-1]), 5):
        label = f"{tick / 1000:g}k" if tick else "0"
        parts.append(f'<text x="{x(tick):.1f}" y="{HIGH + 18}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{WIDE / 2}" y="{HIGH + 36}" text-anchor="middle">steps</text>')
    parts.append(f'<path d="M0 {y(goal):.1f}H{WIDE}" stroke="#222" stroke-dasharray="5 4"/>')
    for k, (who, side) in enumerate(sides.items()):
        lines, color = np.stack(side), COLORS[k % len(COLORS)]
        known = ~np.isnan(lines).any(0)
        places = [x(v) for v in at[known]]
        ends = [[y(v) for v in f(lines[:, known], axis=0)] for f in (np.min, np.mean, np.max)]
        band = [*zip(places, ends[0], strict=True), *reversed([*zip(places, ends[2], strict=True)])]
        parts.append(f'<path d="{_path(band)}Z" fill="{color}" opacity=".18"/>')
        middle = _path([*zip(places, ends[1], strict=True)])
        parts.append(f'<path d="{middle}" fill="none" stroke="{color}" stroke-width="2"/>')
        name = f"{who}, {len(side)} seeds"
        parts.append(
            f'<text x="{WIDE - 8}" y="{HIGH - 30 + 18 * k}" text-anchor="end" '
            f'style="fill:{color}">{escape(name)}</text>'
        )
    return "".join(parts)


def running(run: Run, at: F64) -> F64:
    """The mean of the last hundred episodes by each number of steps; NaN before the first one."""
    ends, returns = np.array(run.episodes, float).reshape(-1, 2).T
    sums = np.concatenate([[0.0], np.cumsum(returns)])
    done = np.searchsorted(ends, at, side="right")
    first = np.maximum(done - LAST, 0)
    with np.errstate(invalid="ignore"):
        return (sums[done] - sums[first]) / np.where(done > 0, done - first, np.nan)


def _names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.who for run in runs))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
