"""The threads of an executor: workers, and threads of the program that run kernels as they wait.

    enter(launch) → [window] → help, by waiting threads · workers → retire

A waiting thread runs first the launches that it waits for, then the oldest ready one. A worker is
woken only for a ready kernel; a waiting thread also when its condition holds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal

from recurra.window.failures import KernelError, PoisonedMemory, failed
from recurra.window.gain_model import GainModel
from recurra.window.history_checker import Event
from recurra.window.launch_records import Counts, Launch, ThreadSpan
from recurra.window.parked_threads import ParkedThreads, call_unlocked
from recurra.window.python_window import Scheduler, State
from recurra.window.task import Task
from recurra.window.undeclared_writes import WriteWatch

LAST = 4096  # spans kept


class KernelPool:
    """The window, its launches and their results, and the lock that guards them."""

    def __init__(
        self,
        threads: int,
        window: Scheduler,
        judgment: GainModel,
        *,
        record: bool,
        watch: WriteWatch | None = None,
    ):
        self.threads, self.window, self.judgment, self.record = threads, window, judgment, record
        self.watch = watch
        self.counts, self.poisoned = Counts(), PoisonedMemory()
        self.tasks: list[Task] = []
        self.events: list[Event] = []
        self.spans: deque[ThreadSpan] = deque(maxlen=LAST)
        self.launches: dict[int, Launch] = {}  # ticket → in the window or its FIFO
        self.running: dict[int, tuple[int, Launch]] = {}  # thread → (ticket, launch)
        self.state: Literal["open", "closed", "forked"] = "open"
        self._thread_numbers: dict[int, int] = {}  # in the order of their first spans
        self._numbers = 0
        self.reset()

    def reset(self) -> None:
        """Create the locks, without workers: for a new pool, and in a forked child."""
        self.lock = threading.RLock()
        self._ready = ParkedThreads(self.lock)  # workers
        self._done = ParkedThreads(self.lock)  # waiting threads
        self._waiting: list[Callable[[], bool]] = []  # their conditions
        self._idle, self._woken = 0, 0.0  # workers that sleep; when one was last woken
        self.workers: list[threading.Thread] = []

    # into the window; the lock is held

    def number(self, launch: Launch) -> None:
        """Number a launch in program order."""
        launch.number = self._numbers
        self._numbers += 1
        if self.record:
            self.tasks.append(launch.task)

    def enter(self, launch: Launch, ticket: int) -> None:
        """Record a launch to which the window has given a ticket."""
        launch.ticket = ticket
        self.number(launch)
        self.launches[ticket] = launch

    def wake_workers(self, but: int = 0) -> None:
        """Wake workers, and start them if needed, for all ready kernels but so many."""
        while len(self.workers) < self.threads - 1:
            worker = threading.Thread(target=self._work, name="recurra-window", daemon=True)
            try:
                worker.start()
            except RuntimeError as error:  # Ctrl-C came where Python waits for it to start
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise error.__context__ from None
                raise
            self.workers.append(worker)  # after start(), since only then may it be joined
        self._wake(self.window.ready() - but)

    def help(self, condition: Callable[[], bool], preferred: Sequence[Launch] = ()) -> None:
        """Run a ready kernel, of `preferred` if possible, or sleep until the condition holds."""
        ticket = next((x.ticket for x in preferred if self.window.claim(x.ticket)), None)
        if ticket is None:
            ticket = self.window.take()
        if ticket is not None:
            self.counts.by_the_caller += 1
            self._wake(self.window.ready())
            self.run(ticket)
            return
        if not self.running:
            self._fail_orphans()
            return
        try:
            self._waiting.append(condition)
            self._done.sleep()
        finally:
            self._waiting.remove(condition)

    def empty(self) -> None:
        """Help until nothing is in flight."""
        while self.launches:
            self.help(lambda: not self.launches)

    def _fail_orphans(self) -> None:
        """Fail the executing tasks of threads that were interrupted or died.

        Called where nothing is ready and no thread runs a kernel.
        """
        for slot in self.window.slots():
            if slot.state is State.EXECUTING:
                self._finish(slot.ticket, None, KeyboardInterrupt("who should run it was stopped"))

    # running

    def run(self, ticket: int) -> None:
        """Run a kernel that is executing in the window, with the lock released meanwhile."""
        launch = self.launches.get(ticket)
        if launch is None:  # Ctrl-C came before it was recorded: it was not launched
            self.window.retire(ticket)
            return
        me = threading.get_ident()
        error = self.poisoned.error_of(launch.task.reads)
        alone = launch.wrapper.threaded and self._all_threads(launch)
        seconds, cause = None, None
        try:
            self.running[me] = (ticket, launch)
            self.note("start", launch)
            if error is None:
                seconds, cause = call_unlocked(self.lock, lambda: self.timed(launch, alone))
        finally:
            self.running.pop(me, None)
        if seconds is not None and not alone:
            self.judgment.durations.record(launch.kind, seconds)
        self._finish(ticket, error, cause)
        if isinstance(cause, KeyboardInterrupt):
            raise cause

    def timed(self, launch: Launch, alone: bool) -> tuple[float | None, BaseException | None]:
        """Run a kernel; return its seconds of this thread's CPU time, or the exception."""
        args, kwargs = launch.arguments
        if launch.wrapper.threaded:
            kwargs = {**kwargs, "threads": self.threads if alone else 1}
        since, begin = time.perf_counter(), time.thread_time()
        try:
            with nullcontext() if self.watch is None else self.watch.kernel(launch):
                launch.wrapper.function(*args, **kwargs)
        except BaseException as cause:
            return None, cause
        finally:
            self.record_span(launch.wrapper.name, since)
        return time.thread_time() - begin, None

    def record_span(self, name: str, since: float) -> float:
        """Record a span of this thread since a time; return its seconds."""
        now = time.perf_counter()
        thread = self._thread_numbers.setdefault(threading.get_ident(), len(self._thread_numbers))
        self.spans.append(ThreadSpan(name, thread, since, now))
        return now - since

    def record_end(
        self, launch: Launch, error: KernelError | None, cause: BaseException | None
    ) -> None:
        """Record a kernel that is done, failed, or not run because its reads are poisoned."""
        if cause is not None:
            error = failed(launch.wrapper.name, cause, launch.loc)
            self.counts.failed += 1
        elif error is not None:
            self.counts.not_run += 1
        if error is None:
            if self.poisoned:
                args, kwargs = launch.arguments
                self.poisoned.validate(launch.wrapper.written(*args, **kwargs))
        else:
            self.poisoned.poison(launch.task, error, launch.arguments, first=cause is not None)
        launch.error, launch.done, launch.arguments = error, True, ((), {})
        self.note("end", launch)

    def note(self, kind: Literal["start", "end"], launch: Launch) -> None:
        """Record an event for `history_checker.violations`."""
        if self.record:
            self.events.append(Event(kind, launch.number))

    def _finish(self, ticket: int, error: KernelError | None, cause: BaseException | None) -> None:
        """Retire a kernel. `_fail_orphans` repeats this after an interrupt."""
        launch = self.launches.get(ticket)
        if launch is not None and not launch.done:
            self.record_end(launch, error, cause)
        self.launches.pop(ticket, None)
        self.window.retire(ticket)
        ready = self.window.ready()
        self._wake(ready - 1)  # this thread takes one itself
        if self._waiting and (ready or not self.running or any(holds() for holds in self._waiting)):
            self._done.call()

    def _all_threads(self, launch: Launch) -> bool:
        """Return whether a kernel may use all threads: only if it is alone in flight, and large."""
        alone = len(self.launches) == 1 and self.judgment.is_large(launch.kind)
        self.counts.alone_with_all_threads += alone
        return alone

    # workers

    def _wake(self, most: int) -> None:
        count = min(most, self._idle)
        if count > 0:
            self._woken = time.perf_counter()
            self._ready.call(count)

    def _work(self) -> None:
        """Run kernels until the window closes; replace a worker that SystemExit ends."""
        try:
            try:
                initialize_torch_threads()
                with self.lock:
                    while self.state == "open":
                        self._take_or_sleep()
            finally:
                with self.lock:
                    self._replace_worker(threading.current_thread())
        except SystemExit:
            return

    def _take_or_sleep(self) -> None:
        ticket = self.window.take()
        if ticket is not None:
            self.counts.by_workers += 1
            self.run(ticket)
            return
        self._idle += 1
        try:
            self._ready.sleep()
        finally:
            self._idle -= 1
        if self._woken:
            self.judgment.record_wake_up(time.perf_counter() - self._woken)
            self._woken = 0.0

    def _replace_worker(self, worker: threading.Thread) -> None:
        """Replace a worker that ends before the window closes."""
        if self.state != "open":
            return
        if worker in self.workers:
            self.workers.remove(worker)
        self.counts.workers_replaced += 1
        self.wake_workers()
        self._done.call()

    def close(self) -> list[KernelError]:
        """Run every launch and let workers end; return the errors that were not raised yet."""
        if self.state == "open":
            self.empty()
            self.state = "closed"
        self._ready.call()  # again where Ctrl-C came before
        self._done.call()
        return self.poisoned.take_unreported()


def initialize_torch_threads() -> None:
    """Apply `torch.set_num_threads` to this thread, which PyTorch does at the first query only.

    With another number of threads, the last bits of sums differ.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.get_num_threads()
