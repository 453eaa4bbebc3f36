"""Notices: what takes long is told on standard error, once it has taken a second.

They appear on a terminal, and wherever somebody has asked for progress.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from threading import Lock, Timer

from recurra.errors import RecurraError

SECONDS = 1.0  # a shorter silence needs no word
_lock = Lock()
_asked = 0


@contextmanager
def notices_shown() -> Generator[None]:
    """Show notices off a terminal, too, until the block ends."""
    global _asked
    with _lock:
        _asked += 1
    try:
        yield
    finally:
        with _lock:
            _asked -= 1


@contextmanager
def told_if_long(what: str) -> Generator[None]:
    """Tell what the block does if it takes longer than a second."""
    timer = Timer(SECONDS, _tell, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(what: str) -> None:
    if _asked or (sys.stderr is not None and sys.stderr.isatty()):  # pyright: ignore[reportUnnecessaryComparison]
        tell(what)


def tell(line: str) -> None:
    """Print a line on standard error, if there is one."""
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        print(f"recurra: {line}", file=sys.stderr, flush=True)


def in_one_line(error: RecurraError) -> str:
    """Join what is wrong, why, and what to do, as far as the error says it."""
    said = ": ".join(filter(None, (error.what, error.facts)))
    return "; ".join(filter(None, (" ".join(said.split()), error.hint)))


@cache
def tell_once(line: str) -> None:
    """Print a line on standard error, the first time that it is told."""
    tell(line)
