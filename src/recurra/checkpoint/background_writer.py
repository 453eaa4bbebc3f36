"""Checkpoints written behind a run: it goes on while the disk is waited for.

What is written is a copy. One step's files are on disk before the next step's are begun, so a kill
loses the newest at most; a disk that is full is told at the next one, or at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import ParamSpec

Given = ParamSpec("Given")


class Behind:
    """`with Behind() as behind: behind.submit(save, ...)`; leaving waits."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.pending: list[Future[object]] = []

    def submit(
        self, function: Callable[Given, object], *args: Given.args, **kwargs: Given.kwargs
    ) -> None:
        self.pending.append(self.thread.submit(function, *args, **kwargs))

    def wait(self) -> None:
        """Returns when all is on disk; raises what went wrong."""
        pending, self.pending = self.pending, []
        for f in pending:
            f.result()

    def __enter__(self) -> Behind:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            with suppress(Exception) if error else nullcontext():
                self.wait()
        finally:
            self.thread.shutdown()
