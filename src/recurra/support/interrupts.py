"""Ctrl-C that ends work where it can be gone on from."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_calls(stop: Callable[[], None]) -> Generator[None]:
    """Inside, the first Ctrl-C calls `stop`; the next ones are as usual.

    Only the main thread hears of it; where Ctrl-C is ignored, it stays so.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def heard(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
