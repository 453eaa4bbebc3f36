"""Frameworks that train a whole run in one call, stopped after every iteration.

    gate = Gate(lambda: framework.train(..))     it calls gate.wait() once in each iteration
    gate.run(3)                                  three more iterations, then everything waits

The framework runs in a thread of its own, and only while `run` does: process CPU and wall time of
`run(k)` are those of k iterations, from one call of `wait` to the k-th after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from recurra.errors import RecurraError


class Gate:
    """`train` is called once, by the first `run`."""

    def __init__(self, train: Callable[[], Any]) -> None:
        self.let, self.came = threading.Semaphore(0), threading.Semaphore(0)
        self.ended = False
        self.thread = threading.Thread(target=self._through, args=(train,), daemon=True)

    def _through(self, train: Callable[[], Any]) -> None:
        try:
            train()
        finally:  # its traceback, if there is one, is printed by the thread
            self.ended = True
            self.came.release()

    def wait(self) -> None:
        """Called by the framework at the same place of every iteration."""
        self.came.release()
        self.let.acquire()

    def run(self, iterations: int) -> None:
        """Goes on to the place where the framework is `iterations` later; the first time, to it."""
        if self.thread.ident is None:
            self.thread.start()
            self._arrived()
        for _ in range(iterations):
            self.let.release()
            self._arrived()

    def _arrived(self) -> None:
        self.came.acquire()
        if self.ended:
            raise RecurraError("the framework has ended by itself: its run is too short")
