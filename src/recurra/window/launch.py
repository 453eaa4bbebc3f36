"""A launch on its way, and what is kept of those that ran."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from recurra.errors import Loc, here
from recurra.window.failures import KernelError
from recurra.window.task import Task
from recurra.window.timed_stretches import kind_of
from recurra.window.wrapper import Wrapper, named


@dataclass(eq=False)
class Launch:
    """A kernel on its way: its task, the line that launched it, and whether it is done."""

    wrapper: Wrapper
    task: Task
    arguments: tuple[tuple[object, ...], dict[str, object]]
    loc: Loc | None
    number: int
    ticket: int = -1  # in the window
    done: bool = False
    error: KernelError | None = None

    @property
    def kind(self) -> Hashable:
        """Launches of one kind take as long as each other."""
        return kind_of(self.wrapper, self.task)


RAN = Launch(Wrapper("run at once", print), Task("run at once"), ((), {}), None, -1, done=True)


@dataclass
class Counts:
    """The counts of launches by the way they ran, and of what went wrong."""

    by_workers: int = 0
    by_the_caller: int = 0
    inlined: int = 0
    without_window: int = 0
    alone_with_all_threads: int = 0
    not_run: int = 0
    failed: int = 0
    workers_replaced: int = 0


@dataclass(frozen=True)
class Ran:
    """Something ran in a thread (0 is the first that did), in seconds of `time.perf_counter`."""

    name: str
    thread: int
    start: float
    stop: float


def launch_of(
    kernel: Wrapper | Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> Launch:
    """The launch that a call of `launch` makes, with the line of the call."""
    wrapper = kernel if isinstance(kernel, Wrapper) else Wrapper(named(kernel), kernel)
    loc = wrapper.loc or here()
    return Launch(wrapper, wrapper.task(*args, **kwargs), (args, kwargs), loc, 0)
