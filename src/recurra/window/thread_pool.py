"""Threads that run what a window lets go: those of a program that wait, and workers beside them.

    enter(launch) → [window] → help, by who waits · workers → retire

Who waits runs first what it waits for, then the oldest that is ready. A worker is woken for what is
ready only, and who waits when that is over, or there is something to run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal

from recurra.window.failures import KernelError, Spoiled, failed
from recurra.window.gain_model import Judgment
from recurra.window.history_checker import Event
from recurra.window.launch import Counts, Launch, Ran
from recurra.window.native.native_window import NativeWindow
from recurra.window.parked_threads import Sleepers, without
from recurra.window.python_window import Scheduler, State, Window
from recurra.window.task import Task
from recurra.window.undeclared_writes import WriteWatch

LAST = 4096  # spans that are kept


class PoolState:
    """The lock, and what it guards: the window, what is in it, and what became of it."""

    def __init__(
        self,
        threads: int,
        window: Scheduler,
        judgment: Judgment,
        *,
        record: bool,
        watch: WriteWatch | None = None,
    ):
        self.threads, self.window, self.judgment, self.record = threads, window, judgment, record
        self.watch = watch
        self.counts, self.spoiled = Counts(), Spoiled()
        self.tasks: list[Task] = []
        self.events: list[Event] = []
        self.spans: deque[Ran] = deque(maxlen=LAST)
        self.launches: dict[int, Launch] = {}  # ticket → in the window or its FIFO
        self.held: dict[int, tuple[int, Launch]] = {}  # thread → what it runs
        self.state: Literal["open", "closed", "forked"] = "open"
        self._seen: dict[int, int] = {}  # threads, in the order in which they ran something
        self._numbers = 0
        self.fresh()

    def fresh(self) -> None:
        """Locks and no workers: at birth, and in a forked child."""
        self.lock = threading.RLock()
        self._ready = Sleepers(self.lock)  # workers sleep here
        self._done = Sleepers(self.lock)  # who waits, here
        self._waiting: list[Callable[[], bool]] = []  # what they wait for
        self._idle, self._woken = 0, 0.0  # workers that sleep; when one was last woken
        self.workers: list[threading.Thread] = []

    # into the window; the lock is held

    def number(self, launch: Launch) -> None:
        """Number a launch in program order; the lock stays held until the window knows it."""
        launch.number = self._numbers
        self._numbers += 1
        if self.record:
            self.tasks.append(launch.task)

    def enter(self, launch: Launch, ticket: int) -> None:
        """The window has given it a ticket."""
        launch.ticket = ticket
        self.number(launch)
        self.launches[ticket] = launch

    def call(self, but: int = 0) -> None:
        """Workers are to run what is ready, but for so many."""
        while len(self.workers) < self.threads - 1:
            worker = threading.Thread(target=self._work, name="recurra-window", daemon=True)
            try:
                worker.start()
            except RuntimeError as error:  # Ctrl-C came where Python waits for it, without its lock
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise error.__context__ from None
                raise
            self.workers.append(worker)  # only then may it be joined: Ctrl-C comes while it starts
        self._wake(self.window.ready() - but)

    def help(self, over: Callable[[], bool], wanted: Sequence[Launch] = ()) -> None:
        """Runs a ready kernel, of `wanted` if it can, or sleeps until `over` or there is one."""
        ticket = next((x.ticket for x in wanted if self.window.claim(x.ticket)), None)
        if ticket is None:
            ticket = self.window.take()
        if ticket is not None:
            self.counts.by_the_caller += 1
            self._wake(self.window.ready())
            self.run(ticket)
            return
        if not self.held:
            self._give_up()
            return
        try:
            self._waiting.append(over)
            self._done.sleep()
        finally:
            self._waiting.remove(over)

    def empty(self) -> None:
        """Until nothing is in flight."""
        while self.launches:
            self.help(lambda: not self.launches)

    def _give_up(self) -> None:
        """Nothing is ready, and nobody runs anything: what the window has let go was somebody's to
        run who was interrupted, or whose thread has died. It has failed."""
        for slot in self.window.slots():
            if slot.state is State.EXECUTING:
                self._finish(slot.ticket, None, KeyboardInterrupt("who should run it was stopped"))

    # running

    def run(self, ticket: int) -> None:
        """Runs a kernel that the window has let go; the lock is held, but not meanwhile."""
        launch = self.launches.get(ticket)
        if launch is None:  # Ctrl-C came before it had entered: it was not launched
            self.window.retire(ticket)
            return
        me = threading.get_ident()
        blame = self.spoiled.blame(launch.task.reads)
        alone = launch.wrapper.threaded and self._all_threads(launch)
        seconds, cause = None, None
        try:
            self.held[me] = (ticket, launch)
            self.note("start", launch)
            if blame is None:
                seconds, cause = without(self.lock, lambda: self.timed(launch, alone))
        finally:
            self.held.pop(me, None)
        if seconds is not None and not alone:
            self.judgment.durations.learn(launch.kind, seconds)
        self._finish(ticket, blame, cause)
        if isinstance(cause, KeyboardInterrupt):
            raise cause

    def timed(self, launch: Launch, alone: bool) -> tuple[float | None, BaseException | None]:
        """Seconds of this thread's time, or what was raised."""
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
            self.ran(launch.wrapper.name, since)
        return time.thread_time() - begin, None

    def ran(self, name: str, since: float) -> float:
        """Something has run in this thread since then, for so many seconds."""
        now = time.perf_counter()
        thread = self._seen.setdefault(threading.get_ident(), len(self._seen))
        self.spans.append(Ran(name, thread, since, now))
        return now - since

    def settle(
        self, launch: Launch, blame: KernelError | None, cause: BaseException | None
    ) -> None:
        """A kernel is over: done, failed, or not run for lack of what it reads."""
        if cause is not None:
            blame = failed(launch.wrapper.name, cause, launch.loc)
            self.counts.failed += 1
        elif blame is not None:
            self.counts.not_run += 1
        if blame is None:
            if self.spoiled:
                args, kwargs = launch.arguments
                self.spoiled.mend(launch.wrapper.written(*args, **kwargs))
        else:
            self.spoiled.spoil(launch.task, blame, launch.arguments, first=cause is not None)
        launch.error, launch.done, launch.arguments = blame, True, ((), {})
        self.note("end", launch)

    def note(self, kind: Literal["start", "end"], launch: Launch) -> None:
        """Record an event for `history_checker.violations`."""
        if self.record:
            self.events.append(Event(kind, launch.number))

    def _finish(self, ticket: int, blame: KernelError | None, cause: BaseException | None) -> None:
        """A kernel leaves the window. What is interrupted here is done again by `_give_up`."""
        launch = self.launches.get(ticket)
        if launch is not None and not launch.done:
            self.settle(launch, blame, cause)
        self.launches.pop(ticket, None)
        self.window.retire(ticket)
        ready = self.window.ready()
        self._wake(ready - 1)  # who has finished takes the next one, if nobody else does
        if self._waiting and (ready or not self.held or any(over() for over in self._waiting)):
            self._done.call()

    def _all_threads(self, launch: Launch) -> bool:
        """Should a kernel use many threads? Only if nothing else is there to run."""
        alone = len(self.launches) == 1 and self.judgment.large(launch.kind)
        self.counts.alone_with_all_threads += alone
        return alone

    # workers

    def _wake(self, most: int) -> None:
        count = min(most, self._idle)
        if count > 0:
            self._woken = time.perf_counter()
            self._ready.call(count)

    def _work(self) -> None:
        """Run kernels until the window closes or somebody ends this thread: the counts tell."""
        try:
            try:
                as_the_caller()
                with self.lock:
                    while self.state == "open":
                        self._take_or_sleep()
            finally:
                with self.lock:
                    self._left(threading.current_thread())
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
            self.judgment.woke(time.perf_counter() - self._woken)
            self._woken = 0.0

    def _left(self, worker: threading.Thread) -> None:
        """A worker ends: what it still held has failed, and another takes its place."""
        if self.state != "open":
            return
        if worker in self.workers:
            self.workers.remove(worker)
        self.counts.workers_replaced += 1
        self.call()
        self._done.call()

    def close(self) -> list[KernelError]:
        """Everything runs, and workers may go; the errors that nobody has heard of."""
        if self.state == "open":
            self.empty()
            self.state = "closed"
        self._ready.call()  # again where Ctrl-C came before
        self._done.call()
        return self.spoiled.untold()


def window_of(slots: int, queue: int, *, native: bool) -> Scheduler:
    """The compiled one, or the one in Python."""
    return NativeWindow(slots, queue) if native else Window(slots, queue)


def as_the_caller() -> None:
    """PyTorch's operators use as many threads in a new thread as `torch.set_num_threads` said, only
    once that was asked for there; with others, sums of parts have other last bits."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.get_num_threads()
