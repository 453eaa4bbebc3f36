"""One thread at a time, at the price of a few attributes.

A lock of the operating system asks the processor to write out first what the last kernel stored:
half a microsecond after a product of matrices. While nobody else wants its turn, a token is taken
away and put back instead, which Python's own lock makes one step.
"""

from __future__ import annotations

import threading


class Turn:
    """Taken by `take`, or as below, and again by who has it; no signal comes in between.

    try:
        del turn.free
    except AttributeError:
        .. another thread has it, or this one
    else:
        try: ..
        finally: turn.give()
    """

    __slots__ = ("_changed", "_depth", "asleep", "free", "holder")

    def __init__(self) -> None:
        self.free = True  # the token: it is there, or not
        self.holder = 0  # the thread that has it
        self.asleep = 0  # threads that wait for it
        self._depth = 0  # how often who has it took it again
        self._changed = threading.Condition(threading.Lock())

    def mine(self) -> bool:
        """Whether this thread has it."""
        return self.holder == threading.get_ident()

    def taken(self) -> bool:
        """Whether any thread has it."""
        return self.holder != 0

    def again(self) -> bool:
        """Whether who has it took it again."""
        return self._depth != 0

    def take(self) -> None:
        """When nobody else has it."""
        me = threading.get_ident()
        if self.holder == me:
            self._depth += 1
            return
        with self._changed:
            self.asleep += 1
            try:
                self._changed.wait_for(self._taken_now)
            finally:
                self.asleep -= 1
        self.holder = me

    def _taken_now(self) -> bool:
        try:
            del self.free
        except AttributeError:
            return False
        return True

    def give(self) -> None:
        """The next one's."""
        if self._depth:
            self._depth -= 1
            return
        self.holder = 0
        self.free = True
        if self.asleep:
            self.call()

    def call(self) -> None:
        """Somebody waits for it, and it is free."""
        with self._changed:
            self._changed.notify()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.give()
