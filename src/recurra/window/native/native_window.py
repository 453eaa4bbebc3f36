"""The compiled window behind the methods of the one in Python."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from threading import Lock
from types import ModuleType

from recurra.errors import RecurraError
from recurra.support.cxx_toolchain import BuildError
from recurra.support.native_extension import Extension
from recurra.support.notices import in_one_line, tell_once
from recurra.window.native.build import WINDOW, build
from recurra.window.python_window import Slot, State, check_size, not_executing
from recurra.window.task import Task

_STATES = (State.PENDING, State.READY, State.EXECUTING)  # as in window.hpp


_one = Lock()  # at a time: two modules would have two sets of types


def load(folder: Path | None = None, extension: Extension = WINDOW) -> ModuleType:
    """Return the compiled module; it is built at its first use.

    Raises BuildError, naming what to install, if it cannot be built or loaded.
    """
    with _one:
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
def there() -> bool:
    """Tell whether there is a native window: it is built, or told of why it cannot be."""
    try:
        load()
    except RecurraError as error:
        tell_once(f"the window runs in Python, which is slower: {in_one_line(error)}")
        return False
    return True


class NativeWindow:
    """`size` slots (1 to 64) behind a FIFO of at most `queue` tasks: see `core.Window`."""

    def __init__(self, size: int = 32, queue: int = 256, *, folder: Path | None = None):
        check_size(size, queue)
        self.size, self.queue = size, queue
        self._window = load(folder).Window(size, queue)

    def offer(self, task: Task) -> int | None:
        """Takes the next task of the program, or None if the FIFO is full: run something first."""
        return self._window.offer(task)

    def take(self) -> int | None:
        """The oldest ready task, now executing; None if none is ready."""
        return self._window.take()

    def claim(self, ticket: int) -> bool:
        """Takes this very task if it is ready."""
        return self._window.claim(ticket)

    def retire(self, ticket: int) -> None:
        """An executing task is done. Raises WindowError for any other."""
        if not (0 <= ticket < 2**64 and self._window.retire(ticket)):
            raise not_executing(ticket, self._window.offered(), self.slots())

    def slots(self) -> tuple[Slot, ...]:
        """The tasks in the window, oldest first."""
        return tuple(
            Slot(ticket, _STATES[state], frozenset(upstream))
            for ticket, state, upstream in sorted(self._window.slots())
        )

    def waiting(self) -> int:
        """The number of tasks in the FIFO."""
        return self._window.waiting()

    def ready(self) -> int:
        """The number of tasks that `take` would give."""
        return self._window.ready()
