"""Numbers → one SVG: a panel per question, a line per program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log2

from recurra.report.curves import ticks

Points = Sequence[tuple[float, float]]
WIDE, HIGH, EDGE, TOP, ROOM = 420, 260, 60, 40, 190  # of a panel, around it, and of its names
COLORS = ("#d1495b", "#30638e", "#edae49", "#00798c", "#7a5195", "#5b8c5a", "#8d6a4f", "#666666")
STYLE = "text{font:12px system-ui,sans-serif;fill:#444}.title{font-size:14px;font-weight:600}"


@dataclass(frozen=True)
class Panel:
    """Lines over x, whose axis doubles from tick to tick where `doubling`."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Points]
    doubling: bool = False


def picture(title: str, panels: Sequence[Panel]) -> str:
    step = WIDE + EDGE + ROOM
    body = "".join(
        f'<g transform="translate({EDGE + k * step} {TOP})">{drawn(p)}</g>'
        for k, p in enumerate(panels)
    )
    wide, high = len(panels) * step, TOP + HIGH + 50
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f'<rect width="{wide}" height="{high}" fill="#fff"/>{body}</svg>\n'
    )


def drawn(panel: Panel) -> str:
    """One panel; a line's name stands where it ends."""
    xs = sorted({x for line in panel.lines.values() for x, _ in line})
    every = [y for line in panel.lines.values() for _, y in line]
    least, most = min(0.0, *every), 1.05 * max(every)

    def across(x: float) -> float:
        first, last = xs[0], xs[-1]
        if panel.doubling:
            first, last, x = log2(first), log2(last), log2(x)
        return WIDE * (x - first) / ((last - first) or 1)

    def down(y: float) -> float:
        return HIGH * (most - y) / ((most - least) or 1)

    parts = [f'<text class="title" x="0" y="-16">{escape(panel.title)}</text>']
    for tick in ticks(least, most):
        parts.append(f'<path d="M0 {down(tick):.1f}H{WIDE}" stroke="#ddd"/>')
        parts.append(f'<text x="-8" y="{down(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for x in xs if panel.doubling else ticks(xs[0], xs[-1], 5):
        label = f"{x / 1024:g}k" if x >= 1024 and x % 1024 == 0 else f"{x:g}"
        place = f'x="{across(x):.1f}" y="{HIGH + 18}" text-anchor="middle"'
        parts.append(f"<text {place}>{label}</text>")
    parts.append(
        f'<text x="{WIDE / 2}" y="{HIGH + 38}" text-anchor="middle">{escape(panel.x)}</text>'
    )
    parts.append(f'<text x="{-EDGE + 4}" y="-2">{escape(panel.y)}</text>')
    places = names({n: down(line[-1][1]) for n, line in panel.lines.items() if line})
    for k, (name, line) in enumerate(panel.lines.items()):
        color = COLORS[k % len(COLORS)]
        path = "M" + "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in line)
        parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        if len(line) < 20:
            dots = (f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3"/>' for x, y in line)
            parts.append(f'<g fill="{color}">{"".join(dots)}</g>')
        at = f'x="{WIDE + 8}" y="{places[name] + 4:.1f}" style="fill:{color}"'
        parts.append(f"<text {at}>{escape(name)}</text>")
    return "".join(parts)


def names(wanted: Mapping[str, float]) -> dict[str, float]:
    """Heights of names, near those wanted, none on another."""
    out: dict[str, float] = {}
    last = -15.0
    for name, at in sorted(wanted.items(), key=lambda pair: pair[1]):
        last = out[name] = max(at, last + 15)
    over = max(0.0, last - HIGH)
    return {name: at - over for name, at in out.items()}
