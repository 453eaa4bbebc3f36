"""Threads asleep beside a lock; Ctrl-C may come to one at any moment, and leaves nothing behind.

An interrupt is raised where a call has ended, a function begins, or a loop goes on. So what must be
undone is undone by one call of C, in a `finally` that holds from before the first change. A lock is
taken back by `_acquire_restore`, the one way that no interrupt ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def without(lock: Any, call: Callable[[], Result]) -> Result:
    """Call something without the lock, an RLock that this thread has once, and has afterwards."""
    as_before = (1, threading.get_ident())
    try:
        lock._release_save()
        return call()
    finally:
        lock._acquire_restore(as_before)


class Sleepers:
    """The threads that sleep until they are called; the lock is held where they are touched."""

    def __init__(self, lock: Any):
        self._lock = lock
        self._beds: dict[threading.Lock, None] = {}

    def sleep(self) -> None:
        """Return when called; the lock is free meanwhile."""
        bed = threading.Lock()
        bed.acquire()
        try:
            self._beds[bed] = None
            without(self._lock, bed.acquire)
        finally:
            self._beds.pop(bed, None)

    def call(self, most: int | None = None) -> None:
        """Wake all, or so many, the longest asleep first."""
        for bed in tuple(self._beds)[:most]:
            if bed.locked():
                bed.release()
            self._beds.pop(bed, None)
