"""A reentrant mutex whose uncontended path is the deletion of one Python attribute.

A lock of the operating system is a memory fence: after a product of matrices, whose stores it waits
for, it takes half a microsecond. While no other thread waits, the token `free` is deleted and set
again instead, which the interpreter's own lock makes atomic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from recurra.window.parked_threads import ParkedThreads

Result = TypeVar("Result")


class TokenLock:
    """A mutex that `run` acquires, or code as below.

    No call stands between the token and the owner, so that Ctrl-C cannot come between them either.

    try:
        del lock.free
    except AttributeError:
        .. another thread owns it, or this one
    else:
        try: lock.owner = get_ident() ..
        finally: lock.owner = 0; lock.free = True; if lock.waiting: lock.wake_one()
    """

    __slots__ = ("_lock", "_parked", "free", "owner", "waiting")

    def __init__(self) -> None:
        self.free = True  # the token: the attribute is absent while a thread owns the lock
        self.owner = 0  # a thread's number
        self.waiting = 0  # threads
        self._lock = threading.RLock()
        self._parked = ParkedThreads(self._lock)

    def is_mine(self) -> bool:
        return self.owner == threading.get_ident()

    def run(self, work: Callable[[], Result]) -> Result:
        """Call `work` with the lock held, at once where this thread owns it already."""
        me = threading.get_ident()
        if self.owner == me:
            return work()
        try:
            self._acquire(me)
            return work()
        finally:
            if self.owner == me:
                self.owner = 0
                self.free = True
            if self.waiting:
                self.wake_one()

    def _acquire(self, me: int) -> None:
        with self._lock:
            self.waiting += 1
            try:
                while True:
                    try:
                        del self.free
                        self.owner = me
                        return
                    except AttributeError:
                        self._parked.sleep()
            finally:
                self.waiting -= 1

    def wake_one(self) -> None:
        """Wake the thread that has waited longest: the lock is free."""
        with self._lock:
            self._parked.call(1)
