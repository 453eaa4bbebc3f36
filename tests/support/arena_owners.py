"""Whose is every byte of an arena: a NumPy that knows who wrote it last, and who is read.

It shares nothing with the planner: arrays of a run say where they lie, reads and writes are those
that happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from recurra.backends.numpy.numpy_backend import NumpyMachine
from recurra.codegen.arena_views import View
from walked_numpy import WalkedNumpy

NOBODY = 0


class Owned(NumpyMachine):
    """Every read of the arena must find bytes that their own store has written, or nobody."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.block: Any = np.zeros(0, np.uint8)
        self.owners: Any = np.zeros(0, np.int32)
        self.mine: dict[int, tuple[int, Any]] = {}  # of an array: its number
        self.doubtful: tuple[Any, Any] | None = None  # what was read, and which of it is another's
        self.wrong: list[str] = []
        self.shared = 0  # bytes that were another's before they were written

    def own(self, x: Any) -> tuple[int, Any] | None:
        """The number of a store, and of its elements who wrote each last."""
        found = self.mine.get(id(x))
        if found is None:
            return None
        at = x.ctypes.data - self.block.ctypes.data
        size = x.itemsize
        return found[0], self.owners[at : at + x.nbytes : size].reshape(x.shape)

    def settle(self) -> None:
        """What was read is used now."""
        if self.doubtful is not None and self.doubtful[1].any():
            self.wrong.append(f"{int(self.doubtful[1].sum())} elements of another store are read")
        self.doubtful = None

    def read(self, store: Any, starts: tuple[Any, ...], sizes: tuple[int, ...]) -> Any:
        self.settle()
        box, mine = super().read(store, starts, sizes), self.own(store)
        if mine is not None:
            writer = super().read(mine[1], starts, sizes)
            self.doubtful = (box, (writer != mine[0]) & (writer != NOBODY))
        return box

    def gather(self, store: Any, axis: int, at: Any) -> Any:
        """Of a ring it is the wanted points that are used, not all that are read."""
        got = super().gather(store, axis, at)
        if self.doubtful is not None and self.doubtful[0] is store:
            self.doubtful = (got, super().gather(self.doubtful[1], axis, at))
        return got

    def write(self, store: Any, starts: Any, value: Any, also: Any = None) -> Any:
        self.settle()
        for at in (starts,) if also is None else (starts, also):
            self.taken(store, tuple(slice(None) if s is None else int(s) for s in at))
        return super().write(store, starts, value, also)

    def write_box(self, store: Any, starts: tuple[Any, ...], value: Any) -> Any:
        self.settle()
        pairs = zip(starts, value.shape, strict=True)
        self.taken(store, tuple(slice(int(s), int(s) + n) for s, n in pairs))
        return super().write_box(store, starts, value)

    def taken(self, store: Any, key: Any) -> None:
        if (mine := self.own(store)) is not None:
            part = mine[1][key]
            self.shared += int(((part != NOBODY) & (part != mine[0])).sum())
            mine[1][key] = mine[0]


class OwnedBackend(WalkedNumpy):
    """`wrong` says what was read of another's."""

    def __init__(self) -> None:
        self.machine: Any = Owned()

    def arena(self, nbytes: int, views: Sequence[View]) -> list[Any]:
        arrays = super().arena(nbytes, views)
        block = arrays[0].base
        while block.base is not None:
            block = block.base
        self.machine.forget()
        self.machine.block = block
        self.machine.owners = np.zeros(block.nbytes, np.int32)
        self.machine.mine = {id(x): (k, x) for k, x in enumerate(arrays, 1)}
        return arrays

    @property
    def wrong(self) -> list[str]:
        self.machine.settle()
        return self.machine.wrong
