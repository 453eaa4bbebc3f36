"""What an iteration of each algorithm does when, as lanes: TEMPO's figure 23, of a measured run.

recurra bench memory --only returns --out docs
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.memory.recurra_program import program
from benchmarks.memory.workload import Work
from benchmarks.worker import in_worker
from recurra.report.curves import ticks

FILE, NUMBERS = "memory.svg", "memory.json"
LANES = {"environment": "#edae49", "acts": "#30638e", "learns": "#d1495b", "copies": "#7a5195"}
WIDE, LANE, EDGE, TOP, GAP = 900, 16, 100, 30, 34
STYLE = "text{font:12px system-ui,sans-serif;fill:#444}.title{font-weight:600}"
Spans = Sequence[Mapping[str, Any]]


def write(folder: Path, works: Mapping[str, Work], threads: int) -> None:
    """A panel for each of some works, and the numbers beside it."""
    found = {name: in_worker(spans, {"work": asdict(w)}, threads) for name, w in works.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(picture(found))
    (folder / NUMBERS).write_text(json.dumps(found))


def spans(work: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of lane, start and stop, in ms, of the second iteration."""
    asked = Work(**work)
    how: dict[str, Any] = {"offload": asked.offload} if asked.offload else {}
    made = program(asked, 3, launch_steps=1, backend="jax", **how)
    lanes = {r.name: lane(r.active) for r in made.compiled.program.regions}
    with tempfile.TemporaryDirectory() as folder:
        made.run(folder=folder)
        rows = json.loads((Path(folder) / "compiled.json").read_text())["launches"]
    others = {"environment": "environment", "copy": "copies"}
    return [
        {
            "lane": others.get(r["phase"]) or lanes[r["statement"]],
            "start": r["start"],
            "stop": r["stop"],
        }
        for r in rows
    ]


def lane(statements: frozenset[str]) -> str:
    """Does a launch choose actions, or learn? One that does both learns."""
    return "learns" if any(s.startswith(("d_", "+d_")) for s in statements) else "acts"


def picture(found: Mapping[str, Spans]) -> str:
    """Panels under each other, of one scale."""
    last = max(s["stop"] for rows in found.values() for s in rows)
    high = TOP + len(found) * (len(LANES) * LANE + GAP) + 30
    body = "".join(
        _panel(name, rows, last, TOP + k * (len(LANES) * LANE + GAP))
        for k, (name, rows) in enumerate(found.items())
    )
    marks = "".join(
        f'<text x="{EDGE + WIDE * t / last:.1f}" y="{high - 12}">{t:g} ms</text>'
        for t in ticks(0, last)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {EDGE + WIDE + 60} {high}" '
        f'role="img"><title>Acting and learning</title><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{body}{marks}</svg>\n'
    )


def _panel(name: str, rows: Spans, last: float, top: int) -> str:
    scale = WIDE / last
    parts = [f'<text class="title" x="{EDGE}" y="{top - 6}">{escape(name)}</text>']
    for k, (of, color) in enumerate(LANES.items()):
        y = top + k * LANE
        parts.append(f'<text x="6" y="{y + LANE - 4}">{of}</text>')
        parts.append(f'<path d="M{EDGE} {y + LANE}H{EDGE + WIDE}" stroke="#ddd"/>')
        bars = [s for s in rows if s["lane"] == of]
        parts += [
            f'<rect x="{EDGE + s["start"] * scale:.1f}" y="{y + 2}" fill="{color}" '
            f'width="{max((s["stop"] - s["start"]) * scale, 0.5):.1f}" height="{LANE - 4}"/>'
            for s in bars
        ]
    return "".join(parts)
