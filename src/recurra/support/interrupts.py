"""Handlers of Ctrl-C: one that stops work at a point to resume from, and one that waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


def _handler() -> Handler | None:
    """Return the handler of Ctrl-C; None in other threads than the main one, or if ignored."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    return handler if is_main and callable(handler) else None


@contextmanager
def interrupt_calls(stop: Callable[[], None]) -> Generator[None]:
    """Let the first Ctrl-C in the block call `stop`; later ones have their usual effect."""
    before = _handler()
    if before is None:
        yield
        return

    def first(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def hold_interrupts() -> Generator[Callable[[], None]]:
    """Delay Ctrl-C in the block until the yielded function is called, or the block ends."""
    before = _handler()
    if before is None:
        yield lambda: None
        return
    held: list[tuple[int, FrameType | None]] = []

    def release() -> None:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held.pop())

    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield release
    finally:
        release()
