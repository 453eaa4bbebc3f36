"""The copy engine: one thread, which serves what is due soonest, piece by piece.

It copies only while the running instruction leaves slow memory alone, as the simulator has it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from time import perf_counter
from types import TracebackType

from recurra.mapping.execute.memories import Room, SlowMemory


@dataclass(frozen=True)
class Transfer:
    """Between a room and a place in slow memory, into that if `out`; done by the end of step
    `due`."""

    due: int
    buffer: int
    room: Room
    at: int
    out: bool

    def move(self, slow: SlowMemory, done: int) -> int:
        """One piece more than `done` bytes; how many are done then."""
        piece = self.room[done : done + slow.piece]
        (slow.write if self.out else slow.read)(piece, self.at + done)
        return done + len(piece)


class Copier:
    """The thread and its queue; what goes wrong there is raised here, where somebody waits."""

    def __init__(self, slow: SlowMemory) -> None:
        self.slow = slow
        self.seconds: dict[int, float] = {}  # by buffer, of what is copied or being copied
        self.finished: list[int] = []
        self._queue: list[tuple[int, int, int, Transfer]] = []  # due, buffer, bytes done
        self._changed = threading.Condition()
        self._moving: Transfer | None = None
        self._silent = self._stopped = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="copies", daemon=True)

    def __enter__(self) -> Copier:
        self._thread.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
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
        """Until nothing that is due before this step is left."""
        with self._changed:
            self._until(lambda: not self._late(step))

    @contextmanager
    def silent(self) -> Generator[None]:
        """Slow memory is the caller's; copies go on afterwards."""
        with self._changed:
            self._silent = True
            self._until(lambda: self._moving is None)
        try:
            yield
        finally:
            with self._changed:
                self._silent = False
                self._changed.notify_all()

    def _until(self, true: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._failed is not None or true())
        if self._failed is not None:
            raise self._failed

    def _late(self, step: int) -> bool:
        moving = self._moving is not None and self._moving.due < step
        return moving or bool(self._queue and self._queue[0][0] < step)

    def _serve(self) -> None:
        try:
            while self._serve_one():
                pass
        except BaseException as error:  # told to whoever waits
            with self._changed:
                self._failed = error
                self._changed.notify_all()

    def _serve_one(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or bool(self._queue and not self._silent))
            if self._stopped:
                return False
            due, buffer, done, copy = heappop(self._queue)
            self._moving = copy
        start = perf_counter()
        done = copy.move(self.slow, done)
        self.seconds[buffer] = self.seconds.get(buffer, 0.0) + perf_counter() - start
        with self._changed:
            self._moving = None
            if done < len(copy.room):
                heappush(self._queue, (due, buffer, done, copy))
            else:
                self.finished.append(buffer)
            self._changed.notify_all()
        return True
