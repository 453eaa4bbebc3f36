"""The window in C++, and the loader of all native extensions of the window."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock
from types import ModuleType

from recurra.errors import RecurraError
from recurra.support.cxx_toolchain import BuildError
from recurra.support.native_extension import Extension
from recurra.support.notices import in_one_line, tell_once
from recurra.window.native.native_build import WINDOW, build
from recurra.window.python_window import Slot, State, check_size, not_executing
from recurra.window.task import Task

_STATES = (State.PENDING, State.READY, State.EXECUTING)  # as in window.hpp
_loading = Lock()  # two threads would load two modules, with different types


def load(folder: Path | None = None, extension: Extension = WINDOW) -> ModuleType:
    """Return a native extension, which is built at its first use.

    Raises BuildError, naming what to install, if it cannot be built or loaded.
    """
    with _loading:
        if extension.name not in sys.modules:
            path = build(folder, extension)
            spec = importlib.util.spec_from_file_location(extension.name, path)
            assert spec is not None
            assert spec.loader is not None
            try:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            except ImportError as error:
                raise BuildError(
                    f"{extension.what} cannot be loaded",
                    facts=str(error),
                    hint=f"remove {path.parent}: it is built again",
                ) from None
            sys.modules[extension.name] = module
    return sys.modules[extension.name]


@cache
def is_available() -> bool:
    """Return whether the native window can be loaded; if not, print a notice with the reason."""
    try:
        load()
    except RecurraError as error:
        tell_once(f"the window runs in Python, which is slower: {in_one_line(error)}")
        return False
    return True


class NativeWindow:
    """A Scheduler of `size` slots (1 to 64) behind a FIFO of at most `queue` tasks, in C++."""

    def __init__(self, size: int = 32, queue: int = 256, *, folder: Path | None = None):
        check_size(size, queue)
        self.size, self.queue = size, queue
        self._window = window = load(folder).Window(size, queue)
        self.offer: Callable[[Task], int | None] = window.offer
        self.take: Callable[[], int | None] = window.take
        self.claim: Callable[[int], bool] = window.claim
        self.waiting: Callable[[], int] = window.waiting
        self.ready: Callable[[], int] = window.ready

    def retire(self, ticket: int) -> None:
        if not (0 <= ticket < 2**64 and self._window.retire(ticket)):
            raise not_executing(ticket, self._window.offered(), self.slots())

    def slots(self) -> tuple[Slot, ...]:
        return tuple(
            Slot(ticket, _STATES[state], frozenset(upstream))
            for ticket, state, upstream in sorted(self._window.slots())
        )
