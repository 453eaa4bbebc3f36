"""A launch, counts of launches, and spans of what threads ran."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from recurra.errors import Loc, here
from recurra.window.failures import KernelError
from recurra.window.task import Task
from recurra.window.timed_stretches import kind_of
from recurra.window.wrapper import Args, KernelFunction, Kwargs, Wrapper, named


@dataclass(eq=False)
class Launch:
    """A launched kernel: its task, the line that launched it, and whether it is done."""

    wrapper: Wrapper
    task: Task
    arguments: tuple[Args, Kwargs]
    loc: Loc | None
    number: int
    ticket: int = -1  # in the window
    done: bool = False
    error: KernelError | None = None

    @property
    def kind(self) -> Hashable:
        """The key of launches with the same expected duration."""
        return kind_of(self.wrapper, self.task)


RAN = Launch(Wrapper("run at once", print), Task("run at once"), ((), {}), None, -1, done=True)


@dataclass
class Counts:
    """Counts of launches by the way they ran, and of failures."""

    by_workers: int = 0
    by_the_caller: int = 0
    inlined: int = 0
    without_window: int = 0
    alone_with_all_threads: int = 0
    not_run: int = 0
    failed: int = 0
    workers_replaced: int = 0


@dataclass(frozen=True)
class ThreadSpan:
    """A span that a thread ran (0 is the first one), in seconds of `time.perf_counter`."""

    name: str
    thread: int
    start: float
    stop: float


def launch_of(kernel: KernelFunction, args: Args, kwargs: Kwargs) -> Launch:
    """Return the launch of a call of `Executor.launch`, with the line of the call."""
    wrapper = kernel if isinstance(kernel, Wrapper) else Wrapper(named(kernel), kernel)
    loc = wrapper.loc or here()
    return Launch(wrapper, wrapper.task(*args, **kwargs), (args, kwargs), loc, 0)
