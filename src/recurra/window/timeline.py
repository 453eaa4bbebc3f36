"""Timelines of simulated kernels and GPU occupancy, and of threads.

Both are pictures, or JSON for chrome://tracing and Perfetto.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from recurra.errors import either
from recurra.report import page
from recurra.support import atomic_write
from recurra.window.launch_records import ThreadSpan
from recurra.window.task import WindowError

WIDE, ROW, CURVE = 1000, 12, 60  # width, and heights of a row and of the curve
MOST_ROWS = 40


@dataclass(frozen=True)
class KernelSpan:
    """Kernel `kernel` of the trace, from its first block's start to its last block's end, µs."""

    kernel: int
    name: str
    start: float
    stop: float


@dataclass(frozen=True)
class TimelineRun:
    """The simulation of a trace under a policy.

    us      from the program's first action to its last kernel's end
    slots   warps that could be active
    watts   of the idle GPU, and more if all warps are active
    warps   (time, active warps from then on), sorted by time
    """

    policy: str
    trace: str
    us: float
    slots: int
    watts: tuple[float, float]
    spans: tuple[KernelSpan, ...] = field(repr=False)
    warps: tuple[tuple[float, int], ...] = field(repr=False)

    @property
    def occupancy(self) -> float:
        """Active warps over possible ones, averaged over time."""
        ends = [t for t, _ in self.warps[1:]] + [self.us]
        area = sum(
            warps * (stop - start) for (start, warps), stop in zip(self.warps, ends, strict=True)
        )
        return area / (self.us * self.slots)

    @property
    def millijoules(self) -> float:
        """A proxy of energy: idle power for the whole time, and more per active warp."""
        idle, busy = self.watts
        return self.us * (idle + busy * self.occupancy) / 1000

    def chrome(self) -> str:
        """Return JSON for chrome://tracing and Perfetto, with kernels in lanes without overlaps."""
        lanes = lanes_of(self.spans)
        events = [_event(s, lane) for s, lane in zip(self.spans, lanes, strict=True)]
        events += [
            {"name": "active warps", "ph": "C", "pid": 0, "ts": t, "args": {"warps": warps}}
            for t, warps in self.warps
        ]
        return json.dumps({"traceEvents": events})

    def svg(self) -> str:
        """Return a picture of active warps over time, above the kernels."""
        lanes = lanes_of(self.spans)
        shown = min(max(lanes, default=0) + 1, MOST_ROWS)
        scale = WIDE / self.us
        bars = "".join(
            f'<rect x="{s.start * scale:.2f}" y="{CURVE + 6 + lane * ROW}" '
            f'width="{max((s.stop - s.start) * scale, 0.5):.2f}" height="{ROW - 2}" '
            f'fill="hsl({_hue(s.name)} 55% 55%)"><title>{escape(s.name)} ({s.kernel}): '
            f"{s.start:.1f} to {s.stop:.1f} µs</title></rect>"
            for s, lane in zip(self.spans, lanes, strict=True)
            if lane < shown
        )
        height = CURVE + 6 + shown * ROW
        return (
            f'<svg viewBox="0 0 {WIDE} {height}" width="100%" role="img" '
            f'aria-label="kernels over time">{self._curve(scale)}{bars}</svg>'
        )

    def _curve(self, scale: float) -> str:
        points = [f"0,{CURVE}"]
        y = float(CURVE)
        for t, warps in self.warps:
            x = t * scale
            points.append(f"{x:.1f},{y:.1f}")
            y = CURVE * (1 - warps / self.slots)
            points.append(f"{x:.1f},{y:.1f}")
        points += [f"{WIDE},{y:.1f}", f"{WIDE},{CURVE}"]
        return f'<polygon points="{" ".join(points)}" fill="currentColor" fill-opacity="0.3"/>'

    def _repr_html_(self) -> str:
        words = (
            f"<b>{escape(self.trace)}, {escape(self.policy)}</b>: {self.us:.0f} µs, "
            f"{self.occupancy:.0%} of the warps active, {self.millijoules:.2f} mJ"
        )
        return f"<div>{words}<br>{self.svg()}</div>"

    def __str__(self) -> str:
        return (
            f"{self.trace} under {self.policy}: {self.us:.1f} µs, occupancy {self.occupancy:.2f}, "
            f"{self.millijoules:.2f} mJ"
        )


def expect_timeline(path: Path) -> None:
    """Raise WindowError unless a path ends in .html or .json."""
    if path.suffix not in (".html", ".json"):
        hint = either("--timeline block.html", "name one, such as block.html")
        raise WindowError(f"{path} is neither .html nor .json", hint=hint)


def save_threads(path: Path, spans: Sequence[ThreadSpan], about: str) -> None:
    """Write a timeline, a lane for each thread; raise WindowError for other names."""
    expect_timeline(path)
    first = min(s.start for s in spans)
    runs = [
        KernelSpan(k, s.name, (s.start - first) * 1e6, (s.stop - first) * 1e6)
        for k, s in enumerate(spans)
    ]
    if path.suffix == ".json":
        events = [_event(run, s.thread) for run, s in zip(runs, spans, strict=True)]
        atomic_write.save(path, json.dumps({"traceEvents": events}))
        return
    rows = [
        {
            "statement": f"thread {s.thread}",
            "phase": run.name,
            "start": round(run.start / 1e3, 3),
            "stop": round(run.stop / 1e3, 3),
        }
        for run, s in sorted(zip(runs, spans, strict=True), key=lambda both: both[1].thread)
    ]
    page.write(path, "operators by thread", launches=rows, window=about)


def _event(span: KernelSpan, lane: int) -> Mapping[str, object]:
    ts, dur = span.start, span.stop - span.start
    return {"name": span.name, "ph": "X", "pid": 0, "tid": lane, "ts": ts, "dur": dur}


def lanes_of(spans: Sequence[KernelSpan]) -> list[int]:
    """Return the lane of each span: the lowest that is free then."""
    lanes: dict[int, int] = {}
    free: list[float] = []
    for at, span in sorted(enumerate(spans), key=lambda p: p[1].start):
        lane = next((k for k, end in enumerate(free) if end <= span.start), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = span.stop
        lanes[at] = lane
    return [lanes[k] for k in range(len(spans))]


def _hue(name: str) -> int:
    return sum(31**k * ord(c) for k, c in enumerate(name[:12])) % 360
