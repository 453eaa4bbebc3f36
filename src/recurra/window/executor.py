"""Threads that run what a window says may run, while the program goes on.

    with window.Executor(threads=2) as run:
        run.launch(matmul, a, b, c)  # returns at once
        run.launch(matmul, d, e, f)
        run.launch(add, c, f, g)  # waits for both, in the window
        print(run.read(g))  # waits here

Program order is the order of `launch` calls. A thread that waits helps. Kernels run in parallel as
far as they give up Python's lock, as NumPy's and PyTorch's do.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from recurra.fragments import table_html
from recurra.window import lifetime
from recurra.window.access import segments
from recurra.window.core import Scheduler, Window
from recurra.window.faults import KernelError, Spoilt, failed
from recurra.window.happened import Event
from recurra.window.launch import RAN, Counts, Launch, Ran, launch_of
from recurra.window.learning import Judgement
from recurra.window.native.build import built
from recurra.window.native.twin import NativeWindow
from recurra.window.straight import Stretch
from recurra.window.task import Task, WindowError, overlap
from recurra.window.wrapper import Wrapper, named

LAST = 4096  # spans that are kept


class Executor:
    """`threads` threads in all, the caller's among them, behind a window of `slots`.

    policy   "learn": tiny kernels are run at once, and the window is off where the clock says that
             it does not pay; "always" and "never" use it
    native   the compiled window (True), the one in Python (False), or what is there (None)
    record   keep what ran when, in `tasks` and `events`, for `happened.violations`; `spans` are the
             last 4096 kernels that went through the window in any case
    Raises WindowError for numbers that cannot be, and for a native window that is not there.
    """

    def __init__(
        self,
        threads: int = 2,
        slots: int = 32,
        *,
        queue: int = 256,
        policy: Literal["learn", "always", "never"] = "learn",
        native: bool | None = None,
        record: bool = False,
    ):
        if threads < 1:
            raise WindowError(f"{threads} threads", facts="the caller's is one")
        self.threads, self.slots, self.policy, self.record = threads, slots, policy, record
        self.native = bool(built()) if native is None else native
        self._window: Scheduler = (
            NativeWindow(slots, queue) if self.native else Window(slots, queue)
        )
        self.counts, self.judgement = Counts(), Judgement(threads, slots)
        self.tasks: list[Task] = []
        self.events: list[Event] = []
        self.spans: deque[Ran] = deque(maxlen=LAST)
        self._seen: dict[int, int] = {}  # threads, in the order in which they ran something
        self._launches: dict[int, Launch] = {}  # ticket → in the window or its FIFO
        self._held: dict[int, tuple[int, Launch]] = {}  # thread → what it runs
        self._spoilt = Spoilt()
        self._numbers = 0
        self._inside = False  # a kernel runs without the window
        self._stretch = Stretch(self.judgement)
        self._outer: Executor | None = None
        self._state: Literal["open", "closed", "forked"] = "open"
        self._fresh()
        lifetime.born(self)

    def _fresh(self) -> None:
        """Locks and no workers: at birth, and in a forked child."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._order = threading.RLock()  # of kernels that run without the window
        self._workers: list[threading.Thread] = []

    # launching

    def launch(self, kernel: Wrapper | Callable[..., Any], *args: Any, **kwargs: Any) -> Launch:
        """The next kernel of the program; it will see all that earlier ones wrote.

        A plain function may touch anything: it is a barrier.
        Inside a kernel of this executor, it is run at once, as a part of that kernel.
        """
        if self._stretch.straight and self._outer is None:
            with self._order:
                if self._stretch.straight:
                    return self._straight(kernel, args, kwargs)
        if self._outer is not None:
            return self._outer.launch(kernel, *args, **kwargs)
        wrapper = kernel if isinstance(kernel, Wrapper) else Wrapper(named(kernel), kernel)
        if threading.get_ident() in self._held:
            wrapper.function(*args, **kwargs)
            return Launch(wrapper, Task(wrapper.name), ((), {}), None, -1, done=True)
        launch = launch_of(wrapper, args, kwargs)
        with self._lock:
            self._check_open(launch)
            entered = self._enter(launch)
        return launch if entered else self.launch(kernel, *args, **kwargs)

    def _check_open(self, launch: Launch) -> None:
        if self._state != "open":
            raise WindowError(
                f"kernel {launch.wrapper.name} is launched on an executor that is {self._state}",
                facts="it was forked while it ran a kernel" if self._state == "forked" else "",
                hint="launch inside `with Executor() as run:`",
            )

    def _number(self, launch: Launch) -> None:
        """It has its place in the program now: the lock stays held until the window knows."""
        launch.number = self._numbers
        self._numbers += 1
        if self.record:
            self.tasks.append(launch.task)

    def _enter(self, launch: Launch) -> bool:
        """Through the window, unless another thread has just turned it off; the lock is held."""
        ticket: int | None = None
        while ticket is None:
            if self._stretch.straight:
                return False
            if (ticket := self._window.offer(launch.task)) is None:
                self._help()
        self._number(launch)
        self._launches[ticket] = launch
        learning = self.policy == "learn"
        if learning:
            self._stretch.launched.append((launch.task, launch.kind))
            self._stretch.count += 1
        if self.policy == "never":
            while not launch.done:
                self._help()
        elif learning and self.judgement.tiny(launch.kind) and self._window.claim(ticket):
            self.counts.inlined += 1
            self._run(ticket, launch)
        else:
            self._hire()
            self._changed.notify()
        if learning and self._stretch.over(waited=False):
            self._empty()
            self._next_stretch()
        return True

    # waiting

    def read(self, array: Any) -> Any:
        """The array, when everything launched that writes it is done.

        Raises KernelError if a kernel that it follows from has failed.
        """
        self.wait(array)
        return array

    def wait(self, *arrays: Any) -> None:
        """Returns when everything launched that writes any of them is done; see `read`."""
        if self._outer is not None:
            return self._outer.wait(*arrays)
        self._after_straight(lambda: None)
        wanted = segments(arrays)
        inside = self._within()  # all that it may read is done
        with self._lock:
            pending = [x for x in self._launches.values() if overlap(x.task.writes, wanted)]
            while not inside and not all(x.done for x in pending):
                self._help()
            error = self._spoilt.blame(wanted)
            if error is not None:
                raise self._spoilt.told(error)
        return None

    def drain(self) -> None:
        """Returns when everything launched is done. Raises the first KernelError nobody has heard
        of."""
        if self._outer is not None:
            return self._outer.drain()
        self.settle()
        with self._lock:
            errors = self._spoilt.untold()
        if errors:
            raise _first(errors)
        return None

    def settle(self) -> None:
        """Returns when everything launched is done, failed or not."""
        if self._within():
            raise _waits_for_itself()
        self._after_straight(self._waited)
        with self._lock:
            self._empty()
            if not self._stretch.straight:
                self._waited()

    def _within(self) -> bool:
        """Whether this thread runs a kernel of ours."""
        if threading.get_ident() in self._held:
            return True
        if mine := self._inside and self._order.acquire(blocking=False):  # again
            self._order.release()
        return mine

    def _empty(self) -> None:
        while self._launches:
            self._help()

    # running

    def _help(self) -> None:
        """Runs a ready kernel, or waits until something changes; the lock is held."""
        ticket = self._window.take()
        if ticket is None:
            self._changed.wait()
            return
        if threading.current_thread() in self._workers:
            self.counts.by_workers += 1
        else:
            self.counts.by_the_caller += 1
        self._run(ticket, self._launches[ticket])

    def _run(self, ticket: int, launch: Launch) -> None:
        """Runs a kernel that the window has let go; the lock is held, but not meanwhile."""
        me = threading.get_ident()
        blame = self._spoilt.blame(launch.task.reads)
        alone = launch.wrapper.threaded and self._all_threads(launch)
        self._held[me] = (ticket, launch)
        self._note("start", launch)
        self._lock.release()
        try:
            seconds, cause = self._call(launch, alone) if blame is None else (None, None)
        finally:
            self._lock.acquire()
        if seconds is not None and not alone:
            self.judgement.durations.learn(launch.kind, seconds)
        self._finish(me, blame, cause)
        if isinstance(cause, KeyboardInterrupt):
            raise cause

    def _call(self, launch: Launch, alone: bool) -> tuple[float | None, BaseException | None]:
        """Seconds of this thread's time, or what was raised."""
        args, kwargs = launch.arguments
        if launch.wrapper.threaded:
            kwargs = {**kwargs, "threads": self.threads if alone else 1}
        since, begin = time.perf_counter(), time.thread_time()
        try:
            launch.wrapper.function(*args, **kwargs)
        except BaseException as cause:
            return None, cause
        finally:
            self.ran(launch.wrapper.name, since)
        return time.thread_time() - begin, None

    def ran(self, name: str, since: float) -> None:
        """Something has run in this thread since then: a kernel, or what the program does itself
        between launches and wants to see beside them."""
        thread = self._seen.setdefault(threading.get_ident(), len(self._seen))
        self.spans.append(Ran(name, thread, since, time.perf_counter()))

    def _finish(self, thread: int, blame: KernelError | None, cause: BaseException | None) -> None:
        """What a thread ran is over: done, failed, or not run for lack of what it reads."""
        ticket, launch = self._held.pop(thread)
        self._settle(launch, blame, cause)
        self._window.retire(ticket)
        del self._launches[ticket]
        self._changed.notify_all()

    def _settle(
        self, launch: Launch, blame: KernelError | None, cause: BaseException | None
    ) -> None:
        if cause is not None:
            blame = failed(launch.wrapper.name, cause, launch.loc)
            self.counts.failed += 1
        elif blame is not None:
            self.counts.not_run += 1
        if blame is None:
            if self._spoilt:
                args, kwargs = launch.arguments
                self._spoilt.mend(launch.wrapper.written(*args, **kwargs))
        else:
            self._spoilt.spoil(launch.task, blame, launch.arguments, first=cause is not None)
        launch.error, launch.done, launch.arguments = blame, True, ((), {})
        self._note("end", launch)

    def _all_threads(self, launch: Launch) -> bool:
        """Whether a kernel that could use many threads should: nothing else is there to run."""
        alone = len(self._launches) == 1 and self.judgement.large(launch.kind)
        self.counts.alone_with_all_threads += alone
        return alone

    def _note(self, kind: Literal["start", "end"], launch: Launch) -> None:
        if self.record:
            self.events.append(Event(kind, launch.number))

    # without the window, while it does not pay

    def _next_stretch(self) -> None:
        """The lock is held, and nothing is in flight."""
        if not self._launches and self._state == "open":
            self._stretch.end(healthy=not self._spoilt)

    def _waited(self) -> None:
        """Nothing is in flight: a stretch may end."""
        if self.policy == "learn" and self._stretch.over(waited=True):
            self._next_stretch()

    def _after_straight(self, then: Callable[[], None]) -> None:
        """When what another thread runs without the window is over, if it does."""
        if self._stretch.straight:
            with self._order:
                if not self._inside:
                    then()

    def _straight(
        self, kernel: Wrapper | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Launch:
        """One kernel after the other, in the order of their launches; the order is held."""
        if self._inside or self.record or not isinstance(kernel, Wrapper) or kernel.threaded:
            return self._straight_slowly(kernel, args, kwargs)
        self._inside = True
        try:
            kernel.function(*args, **kwargs)
        except BaseException as cause:
            return self._settle_straight(launch_of(kernel, args, kwargs), cause)
        finally:
            self._inside = False
        self.counts.without_window += 1
        stretch = self._stretch
        stretch.count += 1
        if stretch.timed:
            stretch.called.append((kernel, args, kwargs))
        if stretch.count & 63 == 0 and stretch.over(waited=False):
            self._next_stretch()
        return RAN

    def _straight_slowly(
        self, kernel: Wrapper | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Launch:
        """A part of a kernel, or what is recorded, told how many threads, or may touch anything."""
        launch = launch_of(kernel, args, kwargs)
        if self._inside:
            launch.wrapper.function(*args, **kwargs)
            launch.done, launch.arguments = True, ((), {})
            return launch
        self._number(launch)
        self._note("start", launch)
        self._inside = True
        try:
            _, cause = self._call(launch, alone=launch.wrapper.threaded)
        finally:
            self._inside = False
        return self._settle_straight(launch, cause)

    def _settle_straight(self, launch: Launch, cause: BaseException | None) -> Launch:
        args, kwargs = launch.arguments
        self.counts.without_window += 1
        self._settle(launch, None, cause)
        self._stretch.count += 1
        if self._stretch.timed:
            self._stretch.called.append((launch.wrapper, args, kwargs))
        if cause is not None or self._stretch.over(waited=False):
            self._next_stretch()
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        return launch

    # workers

    def _hire(self) -> None:
        """As many workers as there should be; the lock is held."""
        while len(self._workers) < self.threads - 1:
            worker = threading.Thread(target=self._work, name="recurra-window", daemon=True)
            self._workers.append(worker)
            worker.start()

    def _work(self) -> None:
        as_the_caller()
        try:
            with self._lock:
                while self._state == "open":
                    self._help()
        except SystemExit:  # somebody ended this thread: told by the counts
            return
        finally:
            with self._lock:
                self._left(threading.current_thread())

    def _left(self, worker: threading.Thread) -> None:
        """A worker ends: what it still held has failed, and another takes its place."""
        if self._state != "open":
            return
        self._workers.remove(worker)
        self.counts.workers_replaced += 1
        if threading.get_ident() in self._held:
            self._finish(threading.get_ident(), None, RuntimeError("its thread died"))
        self._hire()
        self._changed.notify_all()

    # beginning and end

    def __enter__(self) -> Executor:
        self._outer = lifetime.entered(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        lifetime.left(self)
        if self._outer is not None:
            outer, self._outer, self._state = self._outer, None, "closed"
            outer.settle() if kind else outer.drain()
        elif kind:
            self.stop()
        else:
            self.close()

    def close(self) -> None:
        """Runs everything launched and lets the workers go. Raises as `drain` does."""
        errors = self.stop()
        if errors:
            raise _first(errors)

    def stop(self) -> list[KernelError]:
        """Like `close`, but gives the errors that nobody has heard of."""
        self._after_straight(lambda: None)
        with self._lock:
            if self._state == "open":
                self._empty()
                self._state, self._stretch.straight = "closed", False
                self._changed.notify_all()
            errors = self._spoilt.untold()
        for worker in self._workers:
            worker.join()
        self._workers.clear()
        return errors

    # fork: see lifetime.py

    def before_fork(self) -> None:
        """Nothing is in flight, unless a kernel of ours forks; the lock is held from here on."""
        if self._state == "open" and not self._within():
            self.settle()
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """On as before."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Without workers, until the next launch; of no use if a kernel was running."""
        running = bool(self._launches or self._held or self._inside)
        self._fresh()
        if running and self._state == "open":
            self._state, self._stretch.straight = "forked", False

    # showing

    def rows(self) -> list[dict[str, object]]:
        """What was counted, for a table."""
        window = "native window" if self.native else "window in Python"
        head: list[dict[str, object]] = [
            {"what": window, "count": f"{self.slots} slots, {self.threads} threads"}
        ]
        predicted = self.judgement.predicted
        counts = {**vars(self.counts), "predicted gain": predicted and round(predicted, 2)}
        return head + [{"what": k.replace("_", " "), "count": v} for k, v in counts.items()]

    def __str__(self) -> str:
        return "\n".join(f"{row['what']}: {row['count']}" for row in self.rows())

    def _repr_html_(self) -> str:
        return table_html(self.rows()) + table_html(self.judgement.durations.rows())


def as_the_caller() -> None:
    """PyTorch's operators use as many threads in a new thread as `torch.set_num_threads` said, only
    once that was asked for there; with others, sums of parts have other last bits."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.get_num_threads()


def _waits_for_itself() -> WindowError:
    what, facts = "a kernel waits for the end of its own window", "it is itself in flight"
    return WindowError(what, facts=facts, hint="call drain() outside of kernels")


def _first(errors: list[KernelError]) -> KernelError:
    """The oldest error, with a word of the others."""
    for more in errors[1:]:
        errors[0].add_note(f"and {more.what}")
    return errors[0]
