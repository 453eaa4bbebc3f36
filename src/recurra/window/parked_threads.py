"""Threads that sleep beside a lock, safe against Ctrl-C at any moment.

Python raises an interrupt where a call returns, a function begins, or a loop repeats. So every
change is undone by one call of C in a `finally` around it. `_acquire_restore` takes a lock back,
the only way that no interrupt ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def call_unlocked(lock: Any, call: Callable[[], Result]) -> Result:
    """Call something with the lock, an RLock that this thread holds once, released meanwhile."""
    as_before = (1, threading.get_ident())
    try:
        lock._release_save()
        return call()
    finally:
        lock._acquire_restore(as_before)


class ParkedThreads:
    """Threads that sleep until they are called; all methods need the lock."""

    def __init__(self, lock: Any):
        self._lock = lock
        self._parked: dict[threading.Lock, None] = {}

    def sleep(self) -> None:
        """Sleep until called, with the lock released."""
        parked = threading.Lock()
        parked.acquire()
        try:
            self._parked[parked] = None
            call_unlocked(self._lock, parked.acquire)
        finally:
            self._parked.pop(parked, None)

    def call(self, most: int | None = None) -> None:
        """Wake all, or so many, the longest asleep first."""
        for parked in tuple(self._parked)[:most]:
            if parked.locked():
                parked.release()
            self._parked.pop(parked, None)
