"""Numbers → panels of one SVG: lines, dots by benchmark, and distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

import numpy as np

from benchmarks.decode.pictures import COLORS, EDGE, HIGH, ROOM, STYLE, TOP, WIDE, names
from recurra.report.curves import ticks

SPAN = 2 * WIDE + EDGE + ROOM  # of a panel of dots
INK = (*COLORS, "#222222")
VIOLIN = 64  # across, of one distribution


def page(title: str, rows: Sequence[Sequence[tuple[str, int]]], note: str) -> str:
    """Rows of (panel, its width) in one SVG, and a line of text below."""
    parts, down, wide = list[str](), 0, 0
    for row in rows:
        across = 0
        for panel, width in row:
            place = f"translate({EDGE + across} {TOP + down})"
            parts.append(f'<g transform="{place}">{panel}</g>')
            across += EDGE + width + ROOM
        wide, down = max(wide, across), down + TOP + HIGH + 70
    parts.append(f'<text x="{EDGE}" y="{down + 10}">{escape(note)}</text>')
    high = down + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f'<rect width="{wide}" height="{high}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def dots(
    title: str,
    unit: str,
    places: Sequence[str],
    values: Mapping[str, Sequence[float | None]],
    *,
    powers: bool = False,
) -> tuple[str, int]:
    """A dot per name at every place, side by side; `powers`: the axis goes in powers of ten."""
    known = [v for row in values.values() for v in row if v]
    down, marks = _axis(known, powers)
    parts = [f'<text class="title" x="0" y="-16">{escape(title)}</text>']
    parts += [f'<text x="{-EDGE + 4}" y="-2">{escape(unit)}</text>']
    parts += [_mark(down(m), f"{m:g}", SPAN) for m in marks]
    step = SPAN / len(places)
    if len(places) <= 12:
        parts += [_below(step * (k + 0.5), place) for k, place in enumerate(places)]
    else:
        parts.append(_below(SPAN / 2, f"{len(places)} matrix products, {places[0]} and others"))
    last: dict[str, float] = {}
    side = {name: 0.2 + 0.6 * (j + 0.5) / len(values) for j, name in enumerate(values)}
    for j, (name, row) in enumerate(values.items()):
        circles = [
            f'<circle cx="{step * (k + side[name]):.1f}" cy="{down(v):.1f}" r="3"/>'
            for k, v in enumerate(row)
            if v
        ]
        parts.append(f'<g fill="{INK[j % len(INK)]}" opacity=".8">{"".join(circles)}</g>')
        last[name] = next((down(v) for v in reversed(row) if v), HIGH)
    return "".join([*parts, *_names(last, SPAN)]), SPAN


def violins(title: str, unit: str, values: Mapping[str, Sequence[float]]) -> tuple[str, int]:
    """Distributions side by side: how often (Gaussian kernels), every value, and the median."""
    most = 1.05 * max(max(row) for row in values.values())
    width = VIOLIN * len(values)

    def down(v: float) -> float:
        return HIGH * (1 - v / most)

    parts = [f'<text class="title" x="0" y="-16">{escape(title)}</text>']
    parts += [f'<text x="{-EDGE + 4}" y="-2">{escape(unit)}</text>']
    parts += [_mark(down(m), f"{m:g}", width) for m in ticks(0, most)]
    for j, (name, row) in enumerate(values.items()):
        middle, color = VIOLIN * (j + 0.5), INK[j % len(INK)]
        ends = density(row)
        left = [(middle - w * VIOLIN * 0.42, down(v)) for v, w in ends]
        right = [(middle + w * VIOLIN * 0.42, down(v)) for v, w in reversed(ends)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in [*left, *right])
        parts.append(f'<path d="M{path}Z" fill="{color}" opacity=".35"/>')
        parts += [
            f'<circle cx="{middle:.1f}" cy="{down(v):.1f}" r="1.6" fill="{color}"/>' for v in row
        ]
        at = down(float(np.median(row)))
        parts.append(
            f'<path d="M{middle - 14:.1f} {at:.1f}h28" stroke="{color}" stroke-width="2.5"/>'
        )
        parts.append(_below(middle, name) + _below(middle, f"{np.median(row):.2f}", 34))
    return "".join(parts), width


def density(values: Sequence[float], count: int = 40) -> list[tuple[float, float]]:
    """(value, how often as a share of the most often), from the least to the largest value."""
    x = np.asarray(values, float)
    low, high = float(x.min()), float(x.max())
    width = max(1.06 * x.std() * len(x) ** -0.2, 0.01 * max(abs(high), 1e-9))  # Silverman, 1986
    at = np.linspace(low - width, high + width, count)
    often = np.exp(-0.5 * ((at[:, None] - x) / width) ** 2).sum(axis=1)
    return list(zip(at.tolist(), (often / often.max()).tolist(), strict=True))


def _axis(known: Sequence[float], powers: bool) -> tuple[Callable[[float], float], Sequence[float]]:
    """Where a value is drawn, and which are marked."""
    if not powers:
        most = 1.05 * max(known)
        return lambda v: HIGH * (1 - v / most), ticks(0, most)
    low, high = floor(log10(min(known))), ceil(log10(max(known)))
    high = max(high, low + 1)
    return lambda v: HIGH * (high - log10(v)) / (high - low), [
        10.0**k for k in range(low, high + 1)
    ]


def _mark(at: float, label: str, width: float) -> str:
    return (
        f'<path d="M0 {at:.1f}H{width}" stroke="#ddd"/>'
        f'<text x="-8" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _below(at: float, text: str, far: int = 18) -> str:
    return f'<text x="{at:.1f}" y="{HIGH + far}" text-anchor="middle">{escape(text)}</text>'


def _names(last: Mapping[str, float], width: float) -> list[str]:
    """Names where their last dots are."""
    return [
        f'<text x="{width + 8}" y="{y + 4:.1f}" style="fill:{INK[j % len(INK)]}">'
        f"{escape(name)}</text>"
        for j, (name, y) in enumerate((name, names(last)[name]) for name in last)
    ]
