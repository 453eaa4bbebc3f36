"""Charts of curves: an SVG that stretches, with labels in HTML, which do not stretch.

A chart is complete without a script; page.js adds the values under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate

from recurra.report.html import number

Points = Sequence[tuple[float, float]]

WIDE, HIGH = 2000, 1000  # the viewBox of a plot, which CSS stretches to the available size
MANY = 60  # with more points these are drawn light, with their mean on top


def charts(curves: Mapping[str, Points]) -> str:
    """Return one figure per tag, the first one large."""
    if not curves:
        return '<p class="none">no curves were logged</p>'
    limit = max(40, min(240, 2800 // len(curves)))
    figures = [chart(tag, points, limit) for tag, points in curves.items()]
    return f'<div class="curves">{"".join(figures)}</div>'


def chart(tag: str, points: Points, limit: int = 240) -> str:
    """Draw one curve: many points are light, with their running mean on top."""
    points = sorted(((float(x), float(y)) for x, y in points), key=lambda p: p[0])
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    group, _, name = tag.rpartition("/")
    caption = f"<b>{escape(name)}</b> <span>{escape(group)}</span>"
    if lost := len(points) - len(finite):
        caption += f' <em class="lost">{lost} not finite</em>'
    if not finite:
        empty = "no finite value" if points else "no values"
        return (
            f'<figure class="curve"><figcaption>{caption}</figcaption>'
            f'<div class="plot empty"><p class="none">{empty}</p></div></figure>'
        )
    box = _box(finite)
    last = f"<output>{number(float(f'{finite[-1][1]:.5g}'))}</output>"
    if len(finite) > MANY:
        mean = smoothed(finite)
        few = [*range(0, len(finite), max(1, len(finite) // (limit // 2))), len(finite) - 1]
        shown = [(*finite[k], mean[k][1]) for k in few]
        lines = _path(thinned(points, limit), box, "raw")
        lines += _path([mean[k] for k in few], box, "line")
    else:
        shown = finite
        lines = _path(thinned(points, limit), box, "line") + _dots(finite, box)
    return (
        f'<figure class="curve"><figcaption>{caption}{last}</figcaption>'
        f'<div class="plot" {_data(shown, box)}><svg viewBox="0 0 {WIDE} {HIGH}" '
        f'preserveAspectRatio="none" role="img" aria-label="{len(points)} points">'
        f"{_grid(box)}{lines}</svg>{_labels(finite, box)}</div></figure>"
    )


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round numbers (1, 2, 5 times a power of ten) in [low, high]."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def thinned(points: Points, limit: int) -> list[tuple[float, float]]:
    """Thin points to `limit`, keeping the extremes of each bucket; NaN stays as a gap."""
    if len(points) <= limit:
        return list(points)
    buckets = max(1, limit // 2)
    kept: list[tuple[float, float]] = []
    for k in range(buckets):
        part = points[k * len(points) // buckets : (k + 1) * len(points) // buckets]
        finite = [p for p in part if math.isfinite(p[1])]
        extremes = {f(finite, key=lambda p: p[1]) for f in (min, max)} if finite else {part[0]}
        kept += sorted(extremes)
    return kept


def smoothed(points: Points) -> list[tuple[float, float]]:
    """Return the centered mean over a twentieth of the points, which does not lag."""
    sums = [0.0, *accumulate(y for _, y in points)]
    half = max(1, len(points) // 40)
    out: list[tuple[float, float]] = []
    for k, (x, _) in enumerate(points):
        reach = min(half, k, len(points) - 1 - k)
        reach = max(reach, half // 4)
        low, high = max(0, k - reach), min(len(points), k + reach + 1)
        out.append((x, (sums[high] - sums[low]) / (high - low)))
    return out


Box = tuple[float, float, float, float]


def _box(points: Points) -> Box:
    """Return left, right, bottom, top: the range of the data with a margin, never empty."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    if left == right:
        left, right = left - 0.5, right + 0.5
    margin = (high - low) * 0.06
    if margin <= abs(high) * 1e-9:
        margin = abs(high) * 0.1 or 1.0
    return left, right, low - margin, high + margin


def _grid(box: Box) -> str:
    rules = "".join(f"M0 {_y(tick, box)}H{WIDE}" for tick in ticks(box[2], box[3]))
    return f'<path class="grid" d="{rules}"/><path class="axes" d="M0 0V{HIGH}H{WIDE}"/>'


def _labels(points: Points, box: Box) -> str:
    left, right, low, high = box
    up, across = ticks(low, high), ticks(left, right, 5)
    if all(x == int(x) for x, _ in points):
        across = [t for t in across if abs(t - round(t)) < 1e-9]
    spans = [("y", "bottom", (t - low) / (high - low), _tick(t, up)) for t in up]
    spans += [("x", "left", (t - left) / (right - left), _tick(t, across)) for t in across]
    return (
        "".join(
            f'<span class="{axis}" style="{side}:{100 * at:.2f}%">{text}</span>'
            for axis, side, at, text in spans
            if axis == "y" or at < 0.9
        )
        + '<span class="x unit">step</span>'
    )


def _data(shown: Sequence[tuple[float, ...]], box: Box) -> str:
    """Return the data for page.js: the box, and points of x, y and, if there are many, the mean."""
    points = " ".join(f"{p[0]:.9g}," + ",".join(f"{v:.5g}" for v in p[1:]) for p in shown)
    return f'data-box="{" ".join(f"{v:.9g}" for v in box)}" data-points="{points}"'


def _path(points: Points, box: Box, kind: str) -> str:
    parts: list[str] = []
    pen = "M"
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        parts.append(f"{pen}{_x(x, box)} {_y(y, box)}")
        pen = "L"
    return f'<path class="{kind}" d="{"".join(parts)}"/>'


def _dots(points: Points, box: Box) -> str:
    """Draw a few points as strokes of length zero, which stay round when stretched."""
    if len(points) > MANY // 2:
        return ""
    return f'<path class="dots" d="{"".join(f"M{_x(x, box)} {_y(y, box)}h0" for x, y in points)}"/>'


def _x(value: float, box: Box) -> str:
    return f"{WIDE * (value - box[0]) / (box[1] - box[0]):.0f}"


def _y(value: float, box: Box) -> str:
    return f"{HIGH * (box[3] - value) / (box[3] - box[2]):.0f}"


def _tick(value: float, among: Sequence[float]) -> str:
    """Write a tick with few digits; thousands as k, M, G."""
    most = max(abs(t) for t in among)
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if most >= 10 * unit or (most >= unit and unit > 1e3):
            return f"{value / unit:.4g}{sign}" if value else "0"
    return f"{value:.6g}" if abs(value) > most * 1e-9 else "0"
