"""The predicted memory of a run over time: stacked areas by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from recurra.report.html import size

WIDE, HIGH, MOST = 1000, 180, 500


def over_time(names: Mapping[str, str], points: Sequence[Mapping[str, str | int]]) -> str:
    """Draw stacked areas.

    A point has `at`, the running part of the program, and bytes for each of `names`; the values of
    `names` are for the legend.
    """
    if not points:
        return ""
    points = thinned(names, points)
    top = max(max(total(names, p) for p in points), 1)
    used = [n for n in names if any(p.get(n, 0) for p in points)]
    floor, areas = [0] * len(points), ""
    for name in used:
        roof = [f + int(p.get(name, 0)) for f, p in zip(floor, points, strict=True)]
        k = list(names).index(name)
        areas += f'<path class="p{k}" style="fill:var(--p)" d="{_area(floor, roof, top)}"/>'
        floor = roof
    tips = "".join(
        f'<rect x="{_x(k, points):.1f}" y="0" width="{WIDE / len(points):.2f}" height="{HIGH}" '
        f'style="fill:transparent"><title>{escape(_tip(names, p))}</title></rect>'
        for k, p in enumerate(points)
    )
    legend = "".join(f'<li class="p{list(names).index(n)}">{escape(names[n])}</li>' for n in used)
    return (
        f'<figure><svg viewBox="0 0 {WIDE} {HIGH}" width="100%" height="{HIGH}" '
        f'preserveAspectRatio="none" role="img" aria-label="memory over time">{areas}{tips}</svg>'
        f'</figure><ul class="legend">{legend}<li class="axis">up to {escape(size(top))}, as it is '
        "predicted; of long loops the first and the last steps →</li></ul>"
    )


def thinned(
    names: Mapping[str, str], points: Sequence[Mapping[str, str | int]]
) -> list[Mapping[str, str | int]]:
    """Thin points to the highest of each group of neighbors."""
    step = -(-len(points) // MOST)
    groups = (points[k : k + step] for k in range(0, len(points), step))
    return [max(g, key=lambda p: total(names, p)) for g in groups]


def total(names: Mapping[str, str], point: Mapping[str, str | int]) -> int:
    return sum(int(point.get(n, 0)) for n in names)


def _x(index: int, points: Sequence[object]) -> float:
    return WIDE * index / len(points)


def _area(floor: Sequence[int], roof: Sequence[int], top: int) -> str:
    """Return the path of an area: steps along the roof, and back along the floor."""
    n = len(roof)

    def corners(ys: Sequence[int]) -> list[str]:
        ends = ((end, y) for k, y in enumerate(ys) for end in (k, k + 1))
        return [f"{WIDE * end / n:.1f} {HIGH * (1 - y / top):.1f}" for end, y in ends]

    return f"M{'L'.join([*corners(roof), *reversed(corners(floor))])}Z"


def _tip(names: Mapping[str, str], point: Mapping[str, str | int]) -> str:
    parts = ", ".join(f"{names[n]} {size(int(point[n]))}" for n in names if point.get(n))
    return f"{point.get('at', '')}: {size(total(names, point))} ({parts})"
