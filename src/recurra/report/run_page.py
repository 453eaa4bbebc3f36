"""A run folder → its report.html, whenever it is asked for: while it runs, and after a crash.

compiled.json      what the compiler did, kept by `keep_compiled`: the plain data of `page`
metrics.jsonl      the curves, as far as they have come
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from recurra.errors import RecurraError
from recurra.report import page
from recurra.report.html import Row
from recurra.report.runs import RunFolder, curves
from recurra.support import atomic_write, json_text

NAME = "compiled.json"
Rows = Sequence[Row]


class ShownProgram(Protocol):
    """A compiled program as a report shows it: the plain data of `page`."""

    @property
    def equations(self) -> Mapping[str, str]: ...
    @property
    def schedule_text(self) -> str: ...
    @property
    def chart(self) -> Rows: ...
    @property
    def store_rows(self) -> Rows: ...
    @property
    def preflight(self) -> Row | None: ...
    @property
    def source(self) -> str: ...
    @property
    def pass_rows(self) -> Rows: ...
    @property
    def contraction_rows(self) -> Rows: ...


def keep_compiled(run: RunFolder, program: ShownProgram) -> None:
    """Saves what `program` says of its compilation beside the run's settings."""
    parts = {
        "equations": dict(program.equations),
        "schedule": program.schedule_text,
        "schedule_chart": list(program.chart),
        "stores": list(program.store_rows),
        "memory": program.preflight,
        "program": program.source,
        "passes": list(program.pass_rows),
    }
    atomic_write.replace(run.path / NAME, [json.dumps(parts, default=str).encode()])


def keep_islands(run: RunFolder, rows: Rows) -> None:
    """Adds what its loops cost to what is kept of a compiled program."""
    _add(run, "islands", rows)


def keep_contractions(run: RunFolder, program: ShownProgram) -> str:
    """Adds what kernels gain, which is known when regions have been compiled; the same in words."""
    rows = program.contraction_rows
    if rows:
        _add(run, "contractions", rows)
    return page.kernels(rows)


def keep_launches(run: RunFolder, spans: Sequence[Any], window: str) -> None:
    """Adds what ran when, in milliseconds: names, kinds, starts and stops in seconds.

    `window` says how launches ran, of a run that was given one.
    """
    if window:
        _add(run, "window", f"launches {window}")
    if not spans:
        return
    first = min(s.start for s in spans)
    rows = [
        {
            "statement": s.name,
            "phase": s.kind,
            "start": round((s.start - first) * 1e3, 3),
            "stop": round((s.stop - first) * 1e3, 3),
        }
        for s in sorted(spans, key=lambda s: s.start)
    ]
    _add(run, "launches", rows)


def _add(run: RunFolder, name: str, part: Rows | str) -> None:
    parts = {**_read(run.path / NAME), name: part}
    atomic_write.replace(run.path / NAME, [json.dumps(parts).encode()])


def write_page(run: RunFolder) -> Path:
    """Renders report.html from the files of the run."""
    settings = _read(run.config)
    title = " · ".join(str(settings[k]) for k in ("algo", "env") if k in settings)
    rows = run.rows()
    file, own = run.path / NAME, {"meta": settings, "curves": curves(rows)}
    parts = _read(file)
    try:
        return page.write(run.report, title or run.path.name, **own, **parts)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        if not parts:
            raise
        page.write(run.report, title or run.path.name, **own)
        raise RecurraError(
            f"{file} has what no program has left there",
            facts=f"{type(error).__name__}: {error}; the report is of the metrics alone",
            hint=f"remove it: rm {shlex.quote(str(file))}",
        ) from error


def _read(path: Path) -> Mapping[str, object]:
    if not path.exists():
        return {}
    try:
        found = json_text.parsed(path.read_text())
    except ValueError as error:
        raise RecurraError(f"{path} is damaged", facts=str(error)) from None
    if not isinstance(found, dict):
        raise RecurraError(f"{path} is damaged", facts=f"it is {found!r:.60}")
    return cast("dict[str, object]", found)
