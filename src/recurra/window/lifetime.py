"""The lifetime of executors: nested blocks, the end of the interpreter, and forks."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, cast


class InFlight(Protocol):
    """An object with kernels in flight: an executor, or streams."""

    def stop(self) -> Sequence[BaseException]: ...
    def before_fork(self) -> None: ...
    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


class BlockObject(InFlight, Protocol):
    """An object that `with` enters."""

    block: weakref.ref[object] | None

    @property
    def closed(self) -> bool: ...


class EndsBlock:
    """A descriptor for `__exit__` that detects blocks which ended without calling it.

    Python holds the callable until the block ends. If Ctrl-C comes before the first instruction of
    `__exit__`, only the weak reference to the callable dies, which `is_block_exited` sees.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __get__(self, one: BlockObject | None, owner: object = None) -> Callable[..., None]:
        if one is None:
            return self.function
        end = partial(self.function, one)
        if one.block is None or is_block_exited(one):  # not while there is a block
            one.block = weakref.ref(end)
        return end


def ends_block(function: F) -> F:
    """Decorate `__exit__`: see `EndsBlock`."""
    return cast("F", EndsBlock(function))


def is_block_exited(one: BlockObject) -> bool:
    """Return whether the block has ended, by whatever way."""
    return one.block is not None and one.block() is None


E = TypeVar("E", bound=BlockObject)
F = TypeVar("F", bound=Callable[..., None])
_alive: weakref.WeakSet[InFlight] = weakref.WeakSet()
_entered = threading.local()
_forking: list[InFlight] = []


def register(one: InFlight) -> None:
    """Register an object to be drained before the interpreter ends, and before a fork."""
    _alive.add(one)


def enter_block(executor: E) -> E | None:
    """Begin a `with` block in this thread; return the executor of the outermost block around it.

    Two windows at once would not see each other's tasks: launches of the inner one go to the outer.
    """
    if is_block_exited(executor):  # entered by a call: its end cannot be seen
        executor.block = None
    stack: list[E] = _stack()
    for one in stack:
        if is_block_exited(one):  # Ctrl-C came at the end of its block
            one.stop()
    stack[:] = [one for one in stack if not one.closed]
    outer = stack[0] if stack else None
    stack.append(executor)
    return outer


def end_block(executor: InFlight) -> None:
    stack = _stack()
    if executor in stack:
        stack.remove(executor)


def _stack() -> list[Any]:
    if not hasattr(_entered, "stack"):
        _entered.stack = []
    return _entered.stack


def _at_exit() -> None:
    for executor in list(_alive):
        for error in executor.stop():
            print(error, file=sys.stderr)


def _before_fork() -> None:
    _forking[:] = list(_alive)
    for executor in _forking:
        executor.before_fork()


def _in_parent() -> None:
    for executor in _forking:
        executor.after_fork_in_parent()
    _forking.clear()


def _in_child() -> None:
    for executor in _forking:
        executor.after_fork_in_child()
    _forking.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
