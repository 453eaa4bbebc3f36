"""A thread that writes checkpoints while the run continues.

It writes copies. The files of one step are on disk before those of the next step are begun, so a
kill loses at most the newest; an error such as a full disk is raised at the next `wait`, or at the
end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import ParamSpec

Arguments = ParamSpec("Arguments")


class BackgroundWriter:
    """`with BackgroundWriter() as writer: writer.submit(save, ...)`; the end of the block waits."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.pending: list[Future[object]] = []

    def submit(
        self,
        function: Callable[Arguments, object],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        self.pending.append(self.thread.submit(function, *args, **kwargs))

    def wait(self) -> None:
        """Wait until everything is on disk; raises the error of a write."""
        pending, self.pending = self.pending, []
        for f in pending:
            f.result()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with suppress(Exception) if kind else nullcontext():
                self.wait()
        finally:
            self.thread.shutdown()
