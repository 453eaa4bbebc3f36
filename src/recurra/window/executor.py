"""Executor: threads that run kernels through a window, while the program goes on.

    with window.Executor(threads=2) as run:
        run.launch(matmul, a, b, c)  # returns at once
        run.launch(matmul, d, e, f)
        run.launch(add, c, f, g)  # waits for both, in the window
        print(run.read(g))  # waits here

Program order is the order of `launch` calls. A thread that waits runs kernels, too. Kernels run in
parallel while they release Python's lock, as NumPy's and PyTorch's do.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from threading import get_ident
from typing import Literal, TypeVar, get_args

from recurra.report.html import table_html
from recurra.window import lifetime
from recurra.window.access import segments
from recurra.window.failures import KernelError
from recurra.window.gain_model import GainModel, Outside, check_policy
from recurra.window.launch_records import RAN, Counts, Launch, launch_of
from recurra.window.native.native_window import NativeWindow, is_available
from recurra.window.python_window import Window
from recurra.window.task import MOST_THREADS, Task, WindowError, is_count, overlap
from recurra.window.thread_pool import KernelPool
from recurra.window.timed_stretches import Stretch
from recurra.window.token_lock import TokenLock
from recurra.window.undeclared_writes import WriteWatch
from recurra.window.wrapper import Args, KernelFunction, Kwargs, Wrapper, named

A = TypeVar("A")
Policy = Literal["learn", "always", "never"]


class Executor:
    """`threads` threads in all, the caller's among them, behind a window of `slots`.

    policy   "learn": tiny kernels run at once, and the window is off where by the clock it does not
             pay; "always" uses the window for all, "never" waits for each launch
    native   the compiled window (True), the one in Python (False), or the compiled one if available
    record   keep the history in `tasks` and `events`, for `history_checker.violations`; `spans` are
             the last 4096 kernels that went through the window in any case
    stretch  continue a stretch of an executor of as many threads and slots, for the same program
    check    compare the memory of every kernel before and after: undeclared writes fail, and every
             launch goes through the window
    patient  the program waits next, and then runs a kernel itself: one worker fewer is woken
    Raises WindowError for impossible numbers, and where a requested native window is missing.
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
        self.native = is_available() if native is None else native
        self._stretch = stretch or Stretch(GainModel(threads, slots))
        self.judgment = self._stretch.judgment
        window = NativeWindow(slots, queue) if self.native else Window(slots, queue)
        watch = WriteWatch() if check else None
        self._pool = pool = KernelPool(threads, window, self.judgment, record=record, watch=watch)
        self.spans, self.tasks = pool.spans, pool.tasks
        self._before, self._stretch.recorded = self._stretch.alone(), record
        self.events = pool.events
        self._own = int(patient)
        self._serial = TokenLock()  # of threads whose kernels run without the window
        self._outer: Executor | None = None
        self.block: weakref.ref[object] | None = None  # for lifetime.py
        lifetime.register(self)

    # launching

    def launch(self, kernel: KernelFunction, *args: object, **kwargs: object) -> Launch:
        """Launch the next kernel of the program, which sees all writes of earlier ones.

        A plain function may access anything: it is a barrier. Inside a kernel of this executor, the
        launch runs at once, as a part of that kernel.
        """
        serial = self._serial
        try:
            function = kernel.run_synchronously  # pyright: ignore[reportFunctionMemberAccess]
            del serial.free
        except AttributeError:  # a function; another thread holds it; a kernel of this one launches
            return self._launch_otherwise(kernel, args, kwargs)
        try:
            serial.owner = get_ident()
            stretch = self._stretch
            if stretch.direct and function is not None:
                function(*args, **kwargs)
                stretch.count = count = stretch.count + 1
                if count & 31 == 0 and stretch.may_end(waited=False):
                    self._next_stretch()
                return RAN
        except BaseException as cause:
            return self._settle_at_once(launch_of(kernel, args, kwargs), cause)
        finally:
            serial.owner = 0
            serial.free = True
            if serial.waiting:
                serial.wake_one()
        return self._launch_otherwise(kernel, args, kwargs)

    def _launch_otherwise(self, kernel: KernelFunction, args: Args, kwargs: Kwargs) -> Launch:
        """Launch through the window, or at once while that is timed or the launch is unusual."""
        if self._stretch.runs_in_order and self._outer is None:
            nested = self._serial.is_mine()
            done = self._serial.run(lambda: self._run_at_once(kernel, args, kwargs, nested=nested))
            if done is not None:
                return done
        if self._outer is not None:
            return self._outer.launch(kernel, *args, **kwargs)
        wrapper = kernel if isinstance(kernel, Wrapper) else Wrapper(named(kernel), kernel)
        if threading.get_ident() in self._pool.running:
            wrapper.function(*args, **kwargs)
            return Launch(wrapper, Task(wrapper.name), ((), {}), None, -1, done=True)
        launch = launch_of(wrapper, args, kwargs)
        with self._pool.lock:
            self._check_open(launch)
            entered = self._enter(launch)
        return launch if entered else self.launch(kernel, *args, **kwargs)

    def _check_open(self, launch: Launch) -> None:
        if self._pool.state != "open":
            forked = self._pool.state == "forked"
            raise WindowError(
                f"kernel {launch.wrapper.name} is launched on an executor that is "
                f"{self._pool.state}",
                facts="it was forked while it ran a kernel" if forked else "",
                hint="launch inside `with Executor() as run:`",
            )

    def _enter(self, launch: Launch) -> bool:
        """Send a launch through the window, unless another thread has just turned it off.

        The pool's lock is held.
        """
        pool, ticket = self._pool, None
        while ticket is None:
            if self._stretch.runs_in_order:
                return False
            if (ticket := pool.window.offer(launch.task)) is None:
                pool.help(lambda: True)  # until any kernel ends
        pool.enter(launch, ticket)
        learning = self.policy == "learn"
        if learning:
            self._stretch.launched.append((launch.task, launch.kind))
            self._stretch.count += 1
        if self.policy == "never":
            while not launch.done:
                pool.help(lambda: launch.done, (launch,))
        elif learning and self.judgment.is_tiny(launch.kind) and pool.window.claim(ticket):
            pool.counts.inlined += 1
            pool.run(ticket)
        pool.wake_workers(but=self._own)
        if learning and self._stretch.may_end(waited=False):
            pool.empty()
            self._next_stretch()
        return True

    def called(self, name: str, since: float, *reads: object) -> None:
        """Record the program's own work since a time, which has read these arrays.

        It appears in `spans`, and counts in the decision whether the window pays.
        """
        if self._outer is not None:
            return self._outer.called(name, since, *reads)
        seconds = self._pool.record_span(name, since)
        if self.policy == "learn" and self._stretch.timed:  # either way, for equal work
            kind = Outside(name)
            self.judgment.durations.record(kind, seconds)
            self._stretch.launched.append((Task(name, segments(reads)), kind))
        return None

    # waiting

    def read(self, array: A) -> A:
        """Return the array when every launch that writes it is done.

        Raises KernelError if a kernel that it depends on has failed.
        """
        self.wait(array)
        return array

    def wait(self, *arrays: object) -> None:
        """Wait until every launch that writes any of them is done; see `read`."""
        if self._outer is not None:
            return self._outer.wait(*arrays)
        try:
            reads = segments(arrays)
        except WindowError as error:
            hint = "name its arrays one by one, or wait for all that was launched: run.drain()"
            raise WindowError.at_user_line(error.what, facts=error.facts, hint=hint) from None
        self._when_alone(lambda: None)
        pool = self._pool
        if not (pool.launches or pool.poisoned):
            return None
        inside = self._is_in_kernel()  # a kernel runs when its reads are done
        with pool.lock:
            pending = [x for x in pool.launches.values() if overlap(x.task.writes, reads)]
            while not inside and not all(x.done for x in pending):
                pool.help(lambda: all(x.done for x in pending), pending)
            pool.wake_workers()
            error = pool.poisoned.error_of(reads)
            if error is not None:
                raise pool.poisoned.report(error)
        return None

    def drain(self) -> None:
        """Wait until every launch is done; raise the first KernelError that was not raised yet."""
        if self._outer is not None:
            return self._outer.drain()
        if self._idle():
            return None
        self.settle()
        with self._pool.lock:
            errors = self._pool.poisoned.take_unreported()
        _raise_first(errors)
        return None

    def _idle(self) -> bool:
        """Return whether launches run one by one, and there is nothing to wait for or to report."""
        stretch, pool = self._stretch, self._pool
        if not stretch.runs_in_order or stretch.timed or self._serial.owner or pool.launches:
            return False
        return pool.poisoned.is_clear() and not stretch.may_end(waited=True)

    def settle(self) -> None:
        """Wait until every launch is done, failed or not."""
        if self._is_in_kernel():
            raise WindowError(
                "a kernel waits for the end of its own window",
                facts="it is itself in flight",
                hint="call drain() outside of kernels",
            )
        self._when_alone(self._end_idle_stretch)
        with self._pool.lock:
            self._pool.empty()
            if not self._stretch.runs_in_order:
                self._end_idle_stretch()

    def _is_in_kernel(self) -> bool:
        """Return whether this thread runs a kernel of this executor."""
        return self._serial.is_mine() or threading.get_ident() in self._pool.running

    # without the window, while it does not pay

    @property
    def runs_in_order(self) -> bool:
        """Tell whether the next launch is expected to run at once, without the window."""
        return self._stretch.runs_in_order if self._outer is None else self._outer.runs_in_order

    def _next_stretch(self) -> None:
        if not self._pool.launches and self._pool.state == "open":
            self._stretch.end(healthy=not self._pool.poisoned)

    def _end_idle_stretch(self) -> None:
        """End a stretch, if it may, where nothing is in flight."""
        if self.policy == "learn" and self._stretch.may_end(waited=True):
            self._next_stretch()

    def _when_alone(self, then: Callable[[], None]) -> None:
        """Call `then` when no other thread runs kernels without the window."""
        if self._stretch.runs_in_order and not self._serial.is_mine():
            self._serial.run(then)

    def _run_at_once(
        self, kernel: KernelFunction, args: Args, kwargs: Kwargs, *, nested: bool
    ) -> Launch | None:
        """Run a kernel without the window, with the lock of serial launches held.

        Returns None if another thread has turned the window on; `nested` inside a kernel.
        """
        stretch, pool = self._stretch, self._pool
        if not stretch.runs_in_order:
            return None
        if nested:
            launch = launch_of(kernel, args, kwargs)
            launch.wrapper.function(*args, **kwargs)
            launch.done, launch.arguments = True, ((), {})
            return launch
        if self.record or not isinstance(kernel, Wrapper) or kernel.threaded:
            launch = launch_of(kernel, args, kwargs)
            pool.number(launch)
            pool.note("start", launch)
            _, cause = pool.timed(launch, alone=launch.wrapper.threaded)
            return self._settle_at_once(launch, cause)
        try:
            kernel.function(*args, **kwargs)
        except BaseException as cause:
            return self._settle_at_once(launch_of(kernel, args, kwargs), cause)
        stretch.count += 1
        if stretch.timed:
            stretch.record_call(kernel, args, kwargs)
        if stretch.count & 31 == 0 and stretch.may_end(waited=False):
            self._next_stretch()
        return RAN

    def _settle_at_once(self, launch: Launch, cause: BaseException | None) -> Launch:
        args, kwargs = launch.arguments
        self._pool.record_end(launch, None, cause)
        self._stretch.count += 1
        if self._stretch.timed:
            self._stretch.record_call(launch.wrapper, args, kwargs)
        if cause is not None or self._stretch.may_end(waited=False):
            self._next_stretch()
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        return launch

    # beginning and end

    def __enter__(self) -> Executor:
        self._outer = lifetime.enter_block(self)
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
        """End the block, or the rest of it after an interrupt."""
        lifetime.end_block(self)
        if self._outer is not None:
            outer, self._outer, self._pool.state = self._outer, None, "closed"
            outer.settle() if failed else outer.drain()
        elif failed:
            self.stop()
        else:
            self.close()

    @property
    def closed(self) -> bool:
        """Tell whether nothing can be launched any more."""
        return self._pool.state == "closed"

    def close(self) -> None:
        """Run every launch and end the workers; raise as `drain`."""
        _raise_first(self.stop())

    def stop(self) -> list[KernelError]:
        """Close, and return the errors that were not raised yet."""
        self._when_alone(lambda: None)
        with self._pool.lock:
            errors = self._pool.close()
            self._reset_stretch()
        for worker in self._pool.workers:
            worker.join()
        self._pool.workers.clear()
        return errors

    def _reset_stretch(self) -> None:
        """Let later launches see that the executor is closed."""
        self._stretch = Stretch(self.judgment, ran=self._stretch.alone())

    # fork: see lifetime.py

    def before_fork(self) -> None:
        """Settle, unless a kernel of this executor forks, and take the lock."""
        if self._pool.state == "open" and not self._is_in_kernel():
            self.settle()
        self._pool.lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._pool.lock.release()

    def after_fork_in_child(self) -> None:
        """Continue without workers until the next launch; close if a kernel was running."""
        running = bool(self._pool.launches or self._pool.running or self._serial.owner)
        self._pool.reset()
        self._serial = TokenLock()
        if running and self._pool.state == "open":
            self._pool.state = "forked"
            self._reset_stretch()

    # showing

    @property
    def counts(self) -> Counts:
        """Counts of launches by the way they ran, until now."""
        alone = self._stretch.alone() - self._before
        return replace(self._pool.counts, without_window=alone)

    def rows(self) -> list[dict[str, object]]:
        """Return the counts as rows of a table."""
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


def _raise_first(errors: list[KernelError]) -> None:
    """Raise the oldest error, if there is one, with notes of the others."""
    for more in errors[1:]:
        errors[0].add_note(f"and {more.what}")
    if errors:
        raise errors[0]
