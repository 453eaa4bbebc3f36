"""Executors and their process: nested ones, the end of the interpreter, and fork."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, cast


class Lives(Protocol):
    """A thing with kernels in flight: an executor, or streams."""

    def stop(self) -> Sequence[BaseException]: ...
    def before_fork(self) -> None: ...
    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


class Nests(Lives, Protocol):
    """A thing that is entered by `with`."""

    block: weakref.ref[object] | None

    @property
    def closed(self) -> bool: ...


class EndsBlock:
    """`__exit__`, of which the block holds a callable until it has been left.

    Ctrl-C may come before the first instruction of the end: then nothing is left of the callable,
    and `is_left` says so.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __get__(self, one: Nests | None, owner: object = None) -> Callable[..., None]:
        if one is None:
            return self.function
        end = partial(self.function, one)
        if one.block is None or is_left(one):  # not while there is a block
            one.block = weakref.ref(end)
        return end


def ends_block(function: F) -> F:
    """Make `__exit__` what the block holds: see `EndsBlock`."""
    return cast("F", EndsBlock(function))


def is_left(one: Nests) -> bool:
    """Tell whether the block is over, in whatever way."""
    return one.block is not None and one.block() is None


E = TypeVar("E", bound=Nests)
F = TypeVar("F", bound=Callable[..., None])
_alive: weakref.WeakSet[Lives] = weakref.WeakSet()
_entered = threading.local()
_forking: list[Lives] = []


def born(one: Lives) -> None:
    """Register it, to be drained before the interpreter ends, and before a fork."""
    _alive.add(one)


def entered(executor: E) -> E | None:
    """A `with` block begins in this thread; the executor of the block around it, if there is one.

    Two windows beside each other would not see each other's memory: the inner one's launches go to
    the outer one.
    """
    if is_left(executor):  # entered by hand: nothing says when it is left
        executor.block = None
    stack: list[E] = _stack()
    for one in stack:
        if is_left(one):  # Ctrl-C came where its block ended
            one.stop()
    stack[:] = [one for one in stack if not one.closed]
    outer = stack[0] if stack else None
    stack.append(executor)
    return outer


def end_block(executor: Lives) -> None:
    """The block ends."""
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
