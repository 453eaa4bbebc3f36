"""A chart of statements over time, colored by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from recurra.report.curves import ticks
from recurra.report.html import number

Span = Mapping[str, Any]

WIDE, LANE = 1000, 10
COLORS = 8


def concurrency_text(spans: Sequence[Span]) -> str:
    """Describe the time in which at least one span ran, and the part with two or more."""
    marks = sorted([(s["start"], 1) for s in spans] + [(s["stop"], -1) for s in spans])
    busy = both = running = 0.0
    for (at, step), (then, _) in pairwise(marks):
        running += step
        busy += (then - at) * (running >= 1)
        both += (then - at) * (running >= 2)
    share = f", {both:.3g} ms of them ({both / busy:.0%}) side by side" if busy else ""
    return f"{len(spans)} in {busy:.3g} ms{share}" if spans else ""


def draw_timeline(spans: Sequence[Span], unit: str = "logical time") -> str:
    """Draw one lane per statement, in the given order; `stop` is exclusive."""
    if not spans:
        return ""
    lanes = list(dict.fromkeys(s["statement"] for s in spans))
    spans = _merge_touching(spans)
    start = min(s["start"] for s in spans)
    stop = max(max(s["stop"] for s in spans), start + 1)
    phases = list(dict.fromkeys(s["phase"] for s in spans))
    bars = "".join(
        _bar(s, start, stop, lanes.index(s["statement"]), phases.index(s["phase"])) for s in spans
    )
    names = "".join(f"<span>{escape(str(name))}</span>" for name in lanes)
    marks = "".join(
        f'<span class="x" style="left:{100 * (t - start) / (stop - start):.2f}%">{number(t)}</span>'
        for t in ticks(start, stop, 6)
    )
    rules = "".join(f'<path class="grid" d="M0 {k * LANE}H{WIDE}"/>' for k in range(len(lanes) + 1))
    legend = "".join(
        f'<li class="p{k % COLORS}">{escape(str(p))}</li>' for k, p in enumerate(phases)
    )
    return (
        f'<div class="timeline" style="--lanes:{len(lanes)}"><div class="names">{names}</div>'
        f'<div class="lanes"><svg viewBox="0 0 {WIDE} {len(lanes) * LANE}" '
        f'preserveAspectRatio="none" role="img" aria-label="statements over {unit}">'
        f"{rules}{bars}</svg>{marks}</div></div>"
        f'<ul class="legend">{legend}<li class="axis">{unit} →</li></ul>'
    )


def _bar(span: Span, start: float, stop: float, lane: int, phase: int) -> str:
    scale = WIDE / (stop - start)
    left, wide = (span["start"] - start) * scale, (span["stop"] - span["start"]) * scale
    tip = f"{span['statement']}: {number(span['start'])} to {number(span['stop'])}, {span['phase']}"
    return (
        f'<rect class="p{phase % COLORS}" x="{left:.2f}" y="{lane * LANE + 2}" '
        f'width="{max(wide, 3):.2f}" height="{LANE - 4}"><title>{escape(tip)}</title></rect>'
    )


def _merge_touching(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Merge touching spans of one statement and phase, so that a loop of many steps is one bar."""
    merged: list[dict[str, Any]] = []
    latest: dict[tuple[Any, Any], dict[str, Any]] = {}
    for span in sorted(spans, key=lambda s: s["start"]):
        key = (span["statement"], span["phase"])
        last = latest.get(key)
        if last is not None and span["start"] <= last["stop"]:
            last["stop"] = max(last["stop"], span["stop"])
        else:
            latest[key] = dict(span)
            merged.append(latest[key])
    return merged
