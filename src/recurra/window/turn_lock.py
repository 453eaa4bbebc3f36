"""One thread at a time, at the price of a few attributes.

A lock of the operating system asks the processor to write out first what the last kernel stored:
half a microsecond after a product of matrices. While nobody else wants its turn, a token is taken
away and put back instead, which Python's own lock makes one step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from recurra.window.parked_threads import Sleepers

Result = TypeVar("Result")


class Turn:
    """Taken by `during`, or as below; no call comes between the token and the holder, so that
    Ctrl-C does not either.

    try:
        del turn.free
    except AttributeError:
        .. another thread has it, or this one
    else:
        try: turn.holder = get_ident() ..
        finally: turn.holder = 0; turn.free = True; if turn.asleep: turn.call()
    """

    __slots__ = ("_lock", "_sleepers", "asleep", "free", "holder")

    def __init__(self) -> None:
        self.free = True  # the token: it is there, or not
        self.holder = 0  # the thread that has it
        self.asleep = 0  # threads that wait for it
        self._lock = threading.RLock()
        self._sleepers = Sleepers(self._lock)

    def mine(self) -> bool:
        """Does this thread have it?"""
        return self.holder == threading.get_ident()

    def taken(self) -> bool:
        """Does any thread have it?"""
        return self.holder != 0

    def during(self, work: Callable[[], Result]) -> Result:
        """Do the work when nobody else has it; who has it does so at once."""
        me = threading.get_ident()
        if self.holder == me:
            return work()
        try:
            self._take(me)
            return work()
        finally:
            if self.holder == me:
                self.holder = 0
                self.free = True
            if self.asleep:
                self.call()

    def _take(self, me: int) -> None:
        with self._lock:
            self.asleep += 1
            try:
                while True:
                    try:
                        del self.free
                        self.holder = me
                        return
                    except AttributeError:
                        self._sleepers.sleep()
            finally:
                self.asleep -= 1

    def call(self) -> None:
        """Somebody waits for it, and it is free."""
        with self._lock:
            self._sleepers.call(1)
