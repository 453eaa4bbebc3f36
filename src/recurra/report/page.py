"""The self-contained HTML page of a run: its settings, curves, and compilation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from recurra.report.curves import Points, charts
from recurra.report.html import COLORED, Row, code, colored, number, size, style, table
from recurra.report.memory_over_time import over_time
from recurra.report.timeline import Span, concurrency_text, draw_timeline
from recurra.support import atomic_write


@dataclass(frozen=True)
class Section:
    """A part of the page, which is omitted if it has no body."""

    name: str
    note: str
    body: str


def render(
    title: str,
    *,
    meta: Mapping[str, object] | None = None,
    equations: Mapping[str, str] | None = None,
    schedule: str = "",
    schedule_chart: Sequence[Span] = (),
    stores: Sequence[Row] = (),
    memory: Row | None = None,
    program: str = "",
    curves: Mapping[str, Points] | None = None,
    passes: Sequence[Row] = (),
    islands: Sequence[Row] = (),
    contractions: Sequence[Row] = (),
    launches: Sequence[Span] = (),
    window: str = "",
) -> str:
    """Return the page's text.

    equations       stage name → text, in order; the last stage is shown open
    schedule_chart  rows of statement, start, stop (exclusive), phase
    stores          rows of store, kind, shape, slots, live, class, bytes
    memory          predicted text, rows, names and points: see `over_time`
    curves          tag → [(step, value)], the main one first
    passes          rows of name, before, after, ms (nodes before and after)
    islands         rows of island, predicted ms, measured ms: one step of the outermost loop
    contractions    rows of contraction, us, gain, used: those with a kernel of ours
    launches        rows of statement, start, stop, phase: times in ms, and the thread
    window          a description of how launches went through a window
    """
    equations = equations or {}
    sections = [
        Section("Training", "", "" if curves is None else charts(curves)),
        Section("Settings", "", _settings(meta or {})),
        Section("Equations", "marked: new in this stage", _stages(equations)),
        Section(
            "Schedule", "", draw_timeline(schedule_chart) + (code(schedule) if schedule else "")
        ),
        Section("Memory", _total(stores), _peak(memory) + _stores(stores)),
        Section("Program", _lines(program), code(program) if program else ""),
        Section(
            "Islands",
            "one step of the outermost loop, each of its loops launched alone",
            table(islands, bar="measured ms") if islands else "",
        ),
        Section(
            "Launches",
            concurrency_text(launches),
            (f"<p>{escape(window)}</p>" if window else "") + draw_timeline(launches, "ms"),
        ),
        Section("Contractions", kernels(contractions), table(contractions) if contractions else ""),
        Section("Compilation", _effort(passes), table(passes, bar="ms") if passes else ""),
    ]
    sections = [s for s in sections if s.body]
    links = "".join(f'<a href="#{s.name.lower()}">{s.name}</a>' for s in sections)
    body = "\n".join(
        f'<section id="{s.name.lower()}"><h2>{s.name} <small>{s.note}</small></h2>\n'
        f"{s.body}</section>"
        for s in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title>"
        f"<style>{style()}{_asset('page.css')}</style></head>\n"
        f'<body class="rc"><header><h1>{escape(title)}</h1>'
        f"{_headline(curves or {}, stores, passes)}</header>\n<nav>{links}"
        '<button type="button" id="theme" aria-label="light or dark">◐</button></nav>\n'
        f"<main>{body}</main>\n<script>{_asset('page.js')}</script></body></html>\n"
    )


def kernels(contractions: Sequence[Row]) -> str:
    """Describe how many contractions are kernels of our own, and their gain."""
    used = [row for row in contractions if row["used"]]
    if not contractions:
        return ""
    text = f"{len(used)} of {len(contractions)} by kernels of our own"
    if not used:
        return text
    least, most = (f(row["gain"] for row in used) for f in (min, max))
    times = f"{least:.2f}" if least == most else f"{least:.2f} to {most:.2f}"
    return f"{text}, each by itself {times} times as fast as the backend's"


def write(path: str | Path, title: str, **parts: Any) -> Path:
    """Render a page, and replace `path` atomically; `parts` are arguments of `render`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write.replace(path, [render(title, **parts).encode()])
    return path


def _headline(curves: Mapping[str, Points], stores: Sequence[Row], passes: Sequence[Row]) -> str:
    """Return the most important numbers."""
    facts: list[tuple[str, str]] = []
    for k, (tag, points) in enumerate(curves.items()):
        values = [y for _, y in points if math.isfinite(y)]
        if k == 0 and values:
            facts.append((f"{tag.rsplit('/', 1)[-1]}, last", number(float(f"{values[-1]:.4g}"))))
            facts.append(("highest", number(float(f"{max(values):.4g}"))))
        if tag.endswith("SPS") and values:
            facts.append(("steps per second", number(round(sorted(values)[len(values) // 2]))))
    if stores:
        facts.append(("in stores", size(_bytes(stores))))
    if passes:
        facts.append(("in compiler passes", _duration(passes)))
    cells = "".join(f"<div><dd>{escape(v)}</dd><dt>{escape(k)}</dt></div>" for k, v in facts)
    return f'<dl class="headline">{cells}</dl>' if cells else ""


def _settings(meta: Mapping[str, object]) -> str:
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in _flat(meta, "")
    )
    return f'<dl class="settings">{cells}</dl>' if cells else ""


def _flat(meta: Mapping[str, object], prefix: str) -> list[tuple[str, str]]:
    """Return nested settings with dotted names."""
    flat: list[tuple[str, str]] = []
    for name, value in meta.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{prefix}{name}.")
        else:
            flat.append((f"{prefix}{name}", str(value)))
    return flat


def _stages(equations: Mapping[str, str]) -> str:
    """Return one fold per stage, with lines marked that are new in it."""
    parts: list[str] = []
    before: set[str] | None = None
    last = list(equations)[-1] if equations else ""
    in_color = sum(map(len, equations.values())) <= 2 * COLORED
    for name, text in equations.items():
        lines = text.strip("\n").split("\n")
        now = set(lines)
        change = "" if before is None else f"+{len(now - before)} −{len(before - now)}"
        ink = colored if in_color or name == last else escape
        body = "\n".join(
            f"<mark>{ink(line)}</mark>" if before is not None and line not in before else ink(line)
            for line in lines
        )
        count = sum(1 for line in lines if line.strip())
        parts.append(
            f"<details{' open' if name == last else ''}><summary><b>{escape(name)}</b>"
            f'<span>{count} lines</span><span class="change">{change}</span></summary>'
            f'<pre class="code">{body}</pre></details>'
        )
        before = now
    return "".join(parts)


def _stores(stores: Sequence[Row]) -> str:
    """Return the bytes by class as one bar, then the table."""
    if not stores:
        return ""
    classes = Counter[str]()
    for row in stores:
        classes[str(row.get("class", ""))] += int(row.get("bytes") or 0)
    all_bytes = classes.total() or 1
    bar = "".join(
        f'<span class="p{k % 8}" style="flex-grow:{count / all_bytes:.5f}"></span>'
        for k, count in enumerate(classes.values())
    )
    legend = "".join(
        f'<li class="p{k % 8}">{escape(name)} <b>{size(count)}</b></li>'
        for k, (name, count) in enumerate(classes.items())
    )
    total = {next(iter(stores[0])): "total", "bytes": _bytes(stores)}
    return f'<div class="stack">{bar}</div><ul class="legend">{legend}</ul>' + table(
        stores, total, bar="bytes"
    )


def _peak(memory: Row | None) -> str:
    if not memory:
        return ""
    drawn = over_time(memory["names"], memory["points"])
    return drawn + code(memory["text"].partition("\n\n")[0]) + table(memory["rows"], bar="bytes")


def _bytes(stores: Sequence[Row]) -> int:
    return sum(int(row.get("bytes") or 0) for row in stores)


def _total(stores: Sequence[Row]) -> str:
    return f"{len(stores)} stores, {size(_bytes(stores))}" if stores else ""


def _lines(text: str) -> str:
    return f"{len(text.strip().splitlines())} lines" if text else ""


def _duration(passes: Sequence[Row]) -> str:
    ms = sum(float(row.get("ms") or 0) for row in passes)
    return f"{ms / 1000:.3g} s" if ms >= 1000 else f"{ms:.3g} ms"


def _effort(passes: Sequence[Row]) -> str:
    if not passes:
        return ""
    first, last = passes[0].get("before", "?"), passes[-1].get("after", "?")
    return f"{len(passes)} passes, {first} → {last} nodes, {_duration(passes)}"


@cache
def _asset(name: str) -> str:
    return files("recurra.report").joinpath(name).read_text(encoding="utf-8")
