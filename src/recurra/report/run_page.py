"""The report.html of a run folder, which can be written at any time, also after a crash.

compiled.json      data of `page` about the compilation, saved by `keep_compiled`
metrics.jsonl      the curves so far
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from recurra.errors import RecurraError
from recurra.report import page
from recurra.report.html import Row
from recurra.report.runs import RunFolder, curves, read_object
from recurra.support import atomic_write

NAME = "compiled.json"
Rows = Sequence[Row]


class ShownProgram(Protocol):
    """The data of a compiled program for `page`."""

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
    """Save the compilation data of a program beside the run's settings."""
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
    """Add the costs of loops to the saved data."""
    _add(run, "islands", rows)


def keep_contractions(run: RunFolder, program: ShownProgram) -> str:
    """Add the gains of kernels, which are known once regions are compiled; return a summary."""
    rows = program.contraction_rows
    if rows:
        _add(run, "contractions", rows)
    return page.kernels(rows)


def keep_launches(run: RunFolder, spans: Sequence[Any], window: str) -> None:
    """Add the launches: spans with a name, a kind, and start and stop in seconds.

    `window` describes how launches went through a window, if the run had one.
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
    """Render report.html from the files of the run."""
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
    return read_object(path) if path.exists() else {}
