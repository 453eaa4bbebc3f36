"""The compiled window behind the methods of the one in Python."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from recurra.window.core import Slot, State, check_size, not_executing
from recurra.window.native.build import WINDOW, Extension, built
from recurra.window.task import Task, WindowError

_STATES = (State.PENDING, State.READY, State.EXECUTING)  # as in window.hpp


def load(folder: Path | None = None, extension: Extension = WINDOW) -> Any:
    """The compiled module. Raises WindowError, naming the command that builds it, if it is none."""
    if extension.module in sys.modules:
        return sys.modules[extension.module]
    path = built(folder, extension)
    if path is None:
        what = "PyTorch without annotations" if extension.package else "the native window"
        raise WindowError(
            f"{what} is not built",
            facts="nothing in the cache fits this Python, processor, version and PyTorch",
            hint="recurra window build",
        )
    spec = importlib.util.spec_from_file_location(extension.module, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[extension.module] = module  # one module, one set of types
    return module


def there() -> bool:
    """Whether the native window is built: what is loaded is not looked for again."""
    return WINDOW.module in sys.modules or built() is not None


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
        """What is in the window, oldest first."""
        return tuple(
            Slot(ticket, _STATES[state], frozenset(upstream))
            for ticket, state, upstream in sorted(self._window.slots())
        )

    def waiting(self) -> int:
        """How many tasks are in the FIFO."""
        return self._window.waiting()

    def ready(self) -> int:
        """How many tasks `take` would give."""
        return self._window.ready()
