"""Notices on standard error, such as of work that takes longer than a second.

Those appear on a terminal, and inside `notices_shown`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from threading import Lock, Timer

from recurra.errors import RecurraError

SECONDS = 1.0  # the duration of work without a notice
_lock = Lock()
_shown_blocks = 0  # active blocks of `notices_shown`


@contextmanager
def notices_shown() -> Generator[None]:
    """Show notices also without a terminal, until the block ends."""
    global _shown_blocks
    with _lock:
        _shown_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _shown_blocks -= 1


@contextmanager
def notice_if_long(what: str) -> Generator[None]:
    """Print what the block does if it takes longer than a second."""
    timer = Timer(SECONDS, _tell_if_shown, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell_if_shown(what: str) -> None:
    if _shown_blocks or (sys.stderr is not None and sys.stderr.isatty()):  # pyright: ignore[reportUnnecessaryComparison]
        tell(what)


def tell(line: str) -> None:
    """Print a line on standard error, if there is one."""
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        print(f"recurra: {line}", file=sys.stderr, flush=True)


def in_one_line(error: RecurraError) -> str:
    """Join the mistake, the facts and the hint of an error."""
    text = ": ".join(filter(None, (error.what, error.facts)))
    return "; ".join(filter(None, (" ".join(text.split()), error.hint)))


@cache
def tell_once(line: str) -> None:
    """Print a line on standard error, only once."""
    tell(line)
