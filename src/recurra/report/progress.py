"""Training progress: a live bar on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from recurra.support.notices import notices_shown

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress(Protocol):
    """The progress bar that `track` yields."""

    def update(self, done: int, /, **scalars: object) -> None:
        """Show that `done` of the total are finished, with the newest scalars."""


@contextmanager
def track(
    total: int, description: str, *, stream: IO[str] | None = None, every: float = 5.0
) -> Generator[Progress, None, None]:
    """Display progress on `stream` (standard error) until the block ends.

    If that is not a terminal, a line appears at most every `every` seconds, and one at the end.
    """
    # Python without a console has no standard error.
    out: IO[str] = stream or cast("IO[str] | None", sys.stderr) or io.StringIO()
    with notices_shown():
        if out.isatty() and os.environ.get("TERM") != "dumb":
            with _bar(total, description, out) as bar:
                yield bar
            return
        lines = Lines(total, description, out, every)
        try:
            yield lines
        finally:
            lines.finish()


class Lines:
    """Progress as plain text, fit for a log file."""

    def __init__(self, total: int, description: str, stream: IO[str], every: float):
        self.total, self.description, self.stream, self.every = total, description, stream, every
        self.started = time.monotonic()
        self.shown_at = self.started
        self.shown, self.done = -1, 0
        self.scalars: dict[str, object] = {}

    def update(self, done: int, /, **scalars: object) -> None:
        self.done = done
        self.scalars |= scalars
        if time.monotonic() - self.shown_at >= self.every:
            self._show()

    def finish(self) -> None:
        """Show the last state, unless it has been shown."""
        if self.shown != self.done:
            self._show()

    def _show(self) -> None:
        self.shown_at, self.shown = time.monotonic(), self.done
        seconds = self.shown_at - self.started
        rate = self.done / seconds if seconds > 0 else 0.0
        parts = [f"{self.description} {self.done}/{self.total}", f"{rate:,.1f}/s"]
        parts.append(f"{clock(seconds)} gone")
        if rate and self.done < self.total:
            parts.append(f"{clock((self.total - self.done) / rate)} left")
        parts.append(scalars_text(self.scalars))
        print("  ".join(p for p in parts if p), file=self.stream, flush=True)


@contextmanager
def _bar(total: int, description: str, stream: IO[str]) -> Generator[Progress, None, None]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=28),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}", style="cyan"),
        progress.TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        progress.TextColumn("{task.fields[scalars]}", style="dim", markup=False),
    )
    with progress.Progress(*columns, console=Console(file=stream)) as live:
        task = live.add_task(description, total=total, rate="", scalars="")
        yield _Bar(live, task)


class _Bar:
    def __init__(self, live: RichProgress, task: TaskID):
        self.live, self.task, self.scalars = live, task, dict[str, object]()
        self.started = time.monotonic()

    def update(self, done: int, /, **scalars: object) -> None:
        self.scalars |= scalars
        speed = self.live.tasks[0].finished_speed or self.live.tasks[0].speed
        speed = speed or done / max(time.monotonic() - self.started, 1e-9)
        text = scalars_text(self.scalars)
        self.live.update(self.task, completed=done, rate=f"{speed:,.1f}/s", scalars=text)


def scalars_text(scalars: Mapping[str, object]) -> str:
    """Join scalars: `charts/episodic_return` 21.25 → `episodic_return 21.25`."""
    return "  ".join(f"{tag.rsplit('/', 1)[-1]} {_short(v)}" for tag, v in scalars.items())


def _short(value: Any) -> str:
    try:
        return f"{value:.4g}" if isinstance(value, float) else f"{float(value):.6g}"
    except (TypeError, ValueError):
        return str(value)


def clock(seconds: float) -> str:
    """75 → `1:15`, 3675 → `1:01:15`."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
