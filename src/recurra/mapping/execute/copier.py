"""The copy engine: one thread, which serves the earliest deadline first, piece by piece.

It copies only while the running instruction does not use slow memory, as the simulator assumes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from time import perf_counter

from recurra.mapping.execute.memories import ByteBuffer, SlowMemory


@dataclass(frozen=True)
class Transfer:
    """A copy from slow memory to a block, or back if `out`, which must end by step `due`."""

    due: int
    buffer: int
    block: ByteBuffer
    at: int
    out: bool

    def move(self, slow: SlowMemory, done: int) -> int:
        """Move one piece after `done` bytes; return how many are done then."""
        piece = self.block[done : done + slow.piece]
        (slow.write if self.out else slow.read)(piece, self.at + done)
        return done + len(piece)


class Copier:
    """The thread and its queue; an error in the thread is raised in `wait` and `pause`."""

    def __init__(self, slow: SlowMemory) -> None:
        self.slow = slow
        self.seconds: dict[int, float] = {}  # by buffer, of finished and running copies
        self.finished: list[int] = []
        self._queue: list[tuple[int, int, int, Transfer]] = []  # due, buffer, bytes done
        self._changed = threading.Condition()
        self._moving: Transfer | None = None
        self._paused = self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="copies", daemon=True)

    def __enter__(self) -> Copier:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def add(self, copies: Sequence[Transfer]) -> None:
        """Queue copies that may begin."""
        if copies:
            with self._changed:
                for copy in copies:
                    heappush(self._queue, (copy.due, copy.buffer, 0, copy))
                self._changed.notify_all()

    def wait(self, step: int) -> None:
        """Wait until all copies that are due before this step are done."""
        with self._changed:
            self._until(lambda: not self._late(step))

    @contextmanager
    def pause(self) -> Generator[None]:
        """Leave slow memory to the caller inside; copies go on afterwards."""
        with self._changed:
            self._paused = True
            self._until(lambda: self._moving is None)
        try:
            yield
        finally:
            with self._changed:
                self._paused = False
                self._changed.notify_all()

    def _until(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._error is not None or condition())
        if self._error is not None:
            raise self._error

    def _late(self, step: int) -> bool:
        moving = self._moving is not None and self._moving.due < step
        return moving or bool(self._queue and self._queue[0][0] < step)

    def _serve(self) -> None:
        try:
            while self._serve_one():
                pass
        except BaseException as error:  # raised in the waiting thread
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _serve_one(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or bool(self._queue and not self._paused))
            if self._stopped:
                return False
            due, buffer, done, copy = heappop(self._queue)
            self._moving = copy
        start = perf_counter()
        done = copy.move(self.slow, done)
        self.seconds[buffer] = self.seconds.get(buffer, 0.0) + perf_counter() - start
        with self._changed:
            self._moving = None
            if done < len(copy.block):
                heappush(self._queue, (due, buffer, done, copy))
            else:
                self.finished.append(buffer)
            self._changed.notify_all()
        return True
