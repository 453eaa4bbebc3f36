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

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from threading import get_ident
from typing import Literal, TypeVar, get_args

from recurra.errors import here
from recurra.report.html import table_html
from recurra.window import lifetime
from recurra.window.access import segments
from recurra.window.failures import KernelError
from recurra.window.gain_model import Judgment, Outside, check_policy
from recurra.window.launch import RAN, Counts, Launch, launch_of
from recurra.window.native.native_window import there
from recurra.window.task import MOST_THREADS, Task, WindowError, is_count, overlap
from recurra.window.thread_pool import PoolState, window_of
from recurra.window.timed_stretches import Stretch
from recurra.window.token_lock import TokenLock
from recurra.window.undeclared_writes import WriteWatch
from recurra.window.wrapper import Wrapper, named

A = TypeVar("A")
Policy = Literal["learn", "always", "never"]


class Executor:
    """`threads` threads in all, the caller's among them, behind a window of `slots`.

    policy   "learn": tiny kernels are run at once, and the window is off where the clock says that
             it does not pay; "always" and "never" use it
    native   the compiled window (True), the one in Python (False), or what is there (None)
    record   keep what ran when, in `tasks` and `events`, for `happened.violations`; `spans` are the
             last 4096 kernels that went through the window in any case
    stretch  of an executor of as many threads and slots, for the same program: it goes on there
    check    compare the memory of every kernel before and after: one that writes what it does not
             declare fails; every launch goes through the window
    patient  the program waits before it does anything else that takes time: it runs one itself then
    Raises WindowError for numbers that cannot be, and for a native window that is not there.
    """

    def __init__(
        self,
        threads: int = 2,
        slots: int = 32,
        *,
        queue: int = 256,
        policy: Policy = "learn",
        native: bool | None = None,
        record: bool = False,
        check: bool = False,
        stretch: Stretch | None = None,
        patient: bool = False,
    ):
        if not is_count(threads, MOST_THREADS):
            raise WindowError(
                f"{threads!r} threads",
                facts=f"there are 1 to {MOST_THREADS}, the caller's own too",
                hint="threads=2",
            )
        check_policy(policy, get_args(Policy))
        self.threads, self.slots, self.record = threads, slots, record
        self.policy: Policy = "always" if check and policy == "learn" else policy
        self.native = there() if native is None else native
        self._stretch = stretch or Stretch(Judgment(threads, slots))
        self.judgment = self._stretch.judgment
        window = window_of(slots, queue, native=self.native)
        watch = WriteWatch() if check else None
        self._crew = crew = PoolState(threads, window, self.judgment, record=record, watch=watch)
        self.spans, self.tasks = crew.spans, crew.tasks
        self._before, self._stretch.seen = self._stretch.alone(), record
        self.events = crew.events
        self._own = int(patient)
        self._serial = TokenLock()  # of threads whose kernels run without the window
        self._outer: Executor | None = None
        self.block: weakref.ref[object] | None = None  # for lifetime.py
        lifetime.born(self)

    # launching

    def launch(
        self, kernel: Wrapper | Callable[..., object], *args: object, **kwargs: object
    ) -> Launch:
        """The next kernel of the program; it will see all that earlier ones wrote.

        A plain function may touch anything: it is a barrier.
        Inside a kernel of this executor, it is run at once, as a part of that kernel.
        """
        serial = self._serial
        try:
            function = kernel.at_once  # pyright: ignore[reportFunctionMemberAccess]
            del serial.free
        except AttributeError:  # a function; another thread's turn; a kernel of this one launches
            return self._launch_otherwise(kernel, args, kwargs)
        try:
            serial.owner = get_ident()
            stretch = self._stretch
            if stretch.direct and function is not None:
                function(*args, **kwargs)
                stretch.count = count = stretch.count + 1
                if count & 31 == 0 and stretch.over(waited=False):
                    self._next_stretch()
                return RAN
        except BaseException as cause:
            return self._settle_straight(launch_of(kernel, args, kwargs), cause)
        finally:
            serial.owner = 0
            serial.free = True
            if serial.waiting:
                serial.wake_one()
        return self._launch_otherwise(kernel, args, kwargs)

    def _launch_otherwise(
        self,
        kernel: Wrapper | Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Launch:
        """Through the window; or at once, while that is timed or something is unusual about it."""
        stretch = self._stretch
        if stretch.straight and self._outer is None:
            again = self._serial.is_mine()
            done = self._serial.run(
                lambda: self._straight(stretch, kernel, args, kwargs, again=again)
            )
            if done is not None:
                return done
        if self._outer is not None:
            return self._outer.launch(kernel, *args, **kwargs)
        wrapper = kernel if isinstance(kernel, Wrapper) else Wrapper(named(kernel), kernel)
        if threading.get_ident() in self._crew.held:
            wrapper.function(*args, **kwargs)
            return Launch(wrapper, Task(wrapper.name), ((), {}), None, -1, done=True)
        launch = launch_of(wrapper, args, kwargs)
        with self._crew.lock:
            self._check_open(launch)
            entered = self._enter(launch)
        return launch if entered else self.launch(kernel, *args, **kwargs)

    def _check_open(self, launch: Launch) -> None:
        if self._crew.state != "open":
            forked = self._crew.state == "forked"
            raise WindowError(
                f"kernel {launch.wrapper.name} is launched on an executor that is "
                f"{self._crew.state}",
                facts="it was forked while it ran a kernel" if forked else "",
                hint="launch inside `with Executor() as run:`",
            )

    def _enter(self, launch: Launch) -> bool:
        """Through the window, unless another thread has just turned it off; the lock is held."""
        crew, ticket = self._crew, None
        while ticket is None:
            if self._stretch.straight:
                return False
            if (ticket := crew.window.offer(launch.task)) is None:
                crew.help(lambda: True)  # whatever ends, there is room
        crew.enter(launch, ticket)
        learning = self.policy == "learn"
        if learning:
            self._stretch.launched.append((launch.task, launch.kind))
            self._stretch.count += 1
        if self.policy == "never":
            while not launch.done:
                crew.help(lambda: launch.done, (launch,))
        elif learning and self.judgment.tiny(launch.kind) and crew.window.claim(ticket):
            crew.counts.inlined += 1
            crew.run(ticket)
        crew.call(but=self._own)
        if learning and self._stretch.over(waited=False):
            crew.empty()
            self._next_stretch()
        return True

    def called(self, name: str, since: float, *reads: object) -> None:
        """The program itself has run something since then, between launches, which read these:
        it is seen beside them, and counts where it is judged whether the window pays."""
        if self._outer is not None:
            return self._outer.called(name, since, *reads)
        seconds = self._crew.ran(name, since)
        if self.policy == "learn" and self._stretch.timed:  # either way: stretches do equal work
            kind = Outside(name)
            self.judgment.durations.learn(kind, seconds)
            self._stretch.launched.append((Task(name, segments(reads)), kind))
        return None

    # waiting

    def read(self, array: A) -> A:
        """The array, when everything launched that writes it is done.

        Raises KernelError if a kernel that it follows from has failed.
        """
        self.wait(array)
        return array

    def wait(self, *arrays: object) -> None:
        """Returns when everything launched that writes any of them is done; see `read`."""
        if self._outer is not None:
            return self._outer.wait(*arrays)
        try:
            wanted = segments(arrays)
        except WindowError as error:
            hint = "name its arrays one by one, or wait for all that was launched: run.drain()"
            raise WindowError(error.what, facts=error.facts, hint=hint, loc=here()) from None
        self._after_straight(lambda: None)
        crew = self._crew
        if not (crew.launches or crew.spoiled):
            return None
        inside = self._within()  # all that it may read is done
        with crew.lock:
            pending = [x for x in crew.launches.values() if overlap(x.task.writes, wanted)]
            while not inside and not all(x.done for x in pending):
                crew.help(lambda: all(x.done for x in pending), pending)
            crew.call()
            error = crew.spoiled.blame(wanted)
            if error is not None:
                raise crew.spoiled.told(error)
        return None

    def drain(self) -> None:
        """Returns when everything launched is done. Raises the first KernelError nobody has heard
        of."""
        if self._outer is not None:
            return self._outer.drain()
        if self._idle():
            return None
        self.settle()
        with self._crew.lock:
            errors = self._crew.spoiled.untold()
        if errors:
            raise _first(errors)
        return None

    def _idle(self) -> bool:
        """Do launches run one by one, here, with nothing to wait for, tell or do?"""
        stretch, crew = self._stretch, self._crew
        if not stretch.straight or stretch.timed or self._serial.owner or crew.launches:
            return False
        return crew.spoiled.nothing() and not stretch.over(waited=True)

    def settle(self) -> None:
        """Returns when everything launched is done, failed or not."""
        if self._within():
            raise _waits_for_itself()
        self._after_straight(self._waited)
        with self._crew.lock:
            self._crew.empty()
            if not self._stretch.straight:
                self._waited()

    def _within(self) -> bool:
        """Does this thread run a kernel of ours?"""
        return self._serial.is_mine() or threading.get_ident() in self._crew.held

    # without the window, while it does not pay

    @property
    def straight(self) -> bool:
        """Is the next launch run at once, as far as is known?"""
        return self._stretch.straight if self._outer is None else self._outer.straight

    def _next_stretch(self) -> None:
        """The lock is held, and nothing is in flight."""
        if not self._crew.launches and self._crew.state == "open":
            self._stretch.end(healthy=not self._crew.spoiled)

    def _waited(self) -> None:
        """Nothing is in flight: a stretch may end."""
        if self.policy == "learn" and self._stretch.over(waited=True):
            self._next_stretch()

    def _after_straight(self, then: Callable[[], None]) -> None:
        """Run `then` when another thread's work without the window, if any, is over."""
        if self._stretch.straight and not self._serial.is_mine():
            self._serial.run(then)

    def _straight(
        self,
        stretch: Stretch,
        kernel: Wrapper | Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        again: bool,
    ) -> Launch | None:
        """One kernel after the other, in the order of their launches; it is this thread's serial.

        Nothing, if another thread has turned the window on; `again` inside a kernel.
        """
        if not stretch.straight:
            return None
        if again or self.record or not isinstance(kernel, Wrapper) or kernel.threaded:
            return self._straight_slowly(kernel, args, kwargs, again=again)
        try:
            kernel.function(*args, **kwargs)
        except BaseException as cause:
            return self._settle_straight(launch_of(kernel, args, kwargs), cause)
        stretch.count += 1
        if stretch.timed:
            stretch.keep(kernel, args, kwargs)
        if stretch.count & 31 == 0 and stretch.over(waited=False):
            self._next_stretch()
        return RAN

    def _straight_slowly(
        self,
        kernel: Wrapper | Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        again: bool,
    ) -> Launch:
        """A part of a kernel, or what is recorded, told how many threads, or may touch anything."""
        launch = launch_of(kernel, args, kwargs)
        if again:
            launch.wrapper.function(*args, **kwargs)
            launch.done, launch.arguments = True, ((), {})
            return launch
        self._crew.number(launch)
        self._crew.note("start", launch)
        _, cause = self._crew.timed(launch, alone=launch.wrapper.threaded)
        return self._settle_straight(launch, cause)

    def _settle_straight(self, launch: Launch, cause: BaseException | None) -> Launch:
        args, kwargs = launch.arguments
        self._crew.settle(launch, None, cause)
        self._stretch.count += 1
        if self._stretch.timed:
            self._stretch.keep(launch.wrapper, args, kwargs)
        if cause is not None or self._stretch.over(waited=False):
            self._next_stretch()
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        return launch

    # beginning and end

    def __enter__(self) -> Executor:
        self._outer = lifetime.entered(self)
        if self._outer is not None:
            self._stretch.direct = False
        return self

    @lifetime.ends_block
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._end(failed=kind is not None)
        except KeyboardInterrupt:
            self._end(failed=True)
            raise

    def _end(self, *, failed: bool) -> None:
        """Ends the block, or what is left to end of it."""
        lifetime.end_block(self)
        if self._outer is not None:
            outer, self._outer, self._crew.state = self._outer, None, "closed"
            outer.settle() if failed else outer.drain()
        elif failed:
            self.stop()
        else:
            self.close()

    @property
    def closed(self) -> bool:
        """Can nothing be launched any more?"""
        return self._crew.state == "closed"

    def close(self) -> None:
        """Runs everything launched and lets the workers go. Raises as `drain` does."""
        errors = self.stop()
        if errors:
            raise _first(errors)

    def stop(self) -> list[KernelError]:
        """Like `close`, but gives the errors that nobody has heard of."""
        self._after_straight(lambda: None)
        with self._crew.lock:
            errors = self._crew.close()
            self._no_stretch()
        for worker in self._crew.workers:
            worker.join()
        self._crew.workers.clear()
        return errors

    def _no_stretch(self) -> None:
        """Launches find out that nothing can be launched any more."""
        self._stretch = Stretch(self.judgment, ran=self._stretch.alone())

    # fork: see lifetime.py

    def before_fork(self) -> None:
        """Nothing is in flight, unless a kernel of ours forks; the lock is held from here on."""
        if self._crew.state == "open" and not self._within():
            self.settle()
        self._crew.lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on as before."""
        self._crew.lock.release()

    def after_fork_in_child(self) -> None:
        """Without workers, until the next launch; of no use if a kernel was running."""
        running = bool(self._crew.launches or self._crew.held or self._serial.owner)
        self._crew.fresh()
        self._serial = TokenLock()
        if running and self._crew.state == "open":
            self._crew.state = "forked"
            self._no_stretch()

    # showing

    @property
    def counts(self) -> Counts:
        """The counts of launches by the way they ran, until now."""
        alone = self._stretch.alone() - self._before
        return replace(self._crew.counts, without_window=alone)

    def rows(self) -> list[dict[str, object]]:
        """The counts, as rows of a table."""
        window = "native window" if self.native else "window in Python"
        head: list[dict[str, object]] = [
            {"what": window, "count": f"{self.slots} slots, {self.threads} threads"}
        ]
        predicted = self.judgment.predicted
        counts = {**vars(self.counts), "predicted gain": predicted and round(predicted, 2)}
        return head + [{"what": k.replace("_", " "), "count": v} for k, v in counts.items()]

    def __str__(self) -> str:
        return "\n".join(f"{row['what']}: {row['count']}" for row in self.rows())

    def _repr_html_(self) -> str:
        return table_html(self.rows()) + table_html(self.judgment.durations.rows())


def _waits_for_itself() -> WindowError:
    what, facts = "a kernel waits for the end of its own window", "it is itself in flight"
    return WindowError(what, facts=facts, hint="call drain() outside of kernels")


def _first(errors: list[KernelError]) -> KernelError:
    """The oldest error, with a word of the others."""
    for more in errors[1:]:
        errors[0].add_note(f"and {more.what}")
    return errors[0]
