"""Slow memory for the points of offloaded stores: the host's, or a disk.

The file on a disk has no name: nothing of it is left when a run ends, however it ends. Its room is
allocated at once, so that a disk that is too small is known before the first step.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from recurra.cost.thresholds import MAX_UNWRITTEN_BYTES
from recurra.errors import RecurraError
from recurra.support.filesystem import MEMORY, file_system

if TYPE_CHECKING:
    from recurra.backends.protocol import Backend


class SlowTier(Protocol):
    """The points of one store in slow memory, by number, as arrays of a backend."""

    def put(self, index: int, array: object) -> None: ...

    def get(self, index: int) -> object: ...

    def rows(self, index: int, rows: np.ndarray, to: np.ndarray, out: np.ndarray) -> None:
        """Read rows of a point: out[to[j]] is row `rows[j]`."""
        ...

    def close(self) -> None: ...


@dataclass
class HostTier:
    """Points in the host's memory, offloaded from a device."""

    backend: Backend
    points: dict[int, object] = field(default_factory=dict[int, object])

    def put(self, index: int, array: object) -> None:
        self.points[index] = self.backend.copy_to_host(array)

    def get(self, index: int) -> object:
        return self.backend.copy_to_device(self.points[index])

    def rows(self, index: int, rows: np.ndarray, to: np.ndarray, out: np.ndarray) -> None:
        out[to] = np.asarray(self.points[index]).reshape(-1, *out.shape[1:])[rows]

    def close(self) -> None:
        self.points.clear()


@dataclass
class DiskTier:
    """Points on a disk, staged through an array of one point."""

    backend: Backend
    file: Disk
    staging: np.ndarray

    def put(self, index: int, array: object) -> None:
        self.file.write(index, self.backend.host_view(array))

    def get(self, index: int) -> object:
        self.file.read(index, self.staging)
        return self.backend.array(self.staging)

    def rows(self, index: int, rows: np.ndarray, to: np.ndarray, out: np.ndarray) -> None:
        self.file.rows(index, rows, to, out)

    def close(self) -> None:
        self.file.close()


class Disk:
    """Points in a file, one after the other; few pages of it stay in the system's cache.

    Raises RecurraError if there is no room for it, or the folder is not on a disk.
    """

    def __init__(self, name: str, count: int, nbytes: int, folder: str | None):
        self.name, self.nbytes, self.unflushed = name, nbytes, 0
        self.folder = Path(folder or tempfile.gettempdir())
        kind = file_system(self.folder)
        if kind in MEMORY:
            raise RecurraError(
                f"{self.folder} is memory, not a disk",
                facts=f"it is a {kind}, and {name} is to be offloaded there",
                hint='name a folder of a disk: recurra.Offload("disk", folder="/data")',
            )
        try:
            self.file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115, close
            os.posix_fallocate(self.file.fileno(), 0, count * nbytes)
        except OSError as error:
            raise self.failed(f"cannot be offloaded to {self.folder}", count, error) from None

    def failed(self, what: str, count: int, error: OSError) -> RecurraError:
        """The error for what a file system refused, with the free room."""
        facts = f"{error.strerror}; {count * self.nbytes:,} bytes"
        if self.folder.is_dir():
            facts += f", {shutil.disk_usage(self.folder).free:,} are free"
        return RecurraError(
            f"{self.name} {what}",
            facts=facts,
            hint='name another folder: recurra.Offload("disk", folder="/data"); '
            "a run that saves goes on with resume=",
        )

    def write(self, index: int, array: np.ndarray) -> None:
        self.all(os.pwrite, bytes_of(array), index, "written to")
        self.unflushed += self.nbytes
        if self.unflushed >= MAX_UNWRITTEN_BYTES:
            self.flush()

    def flush(self) -> None:
        """Have the system drop its cached pages of the file, once they are on the disk."""
        try:
            os.fdatasync(self.file.fileno())
        except OSError as error:
            raise self.failed(f"cannot be written to {self.folder}", 1, error) from None
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.unflushed = 0

    def read(self, index: int, array: np.ndarray) -> None:
        self.all(_into, bytes_of(array), index, "read from")
        self.forget(index)

    def rows(self, index: int, rows: np.ndarray, to: np.ndarray, out: np.ndarray) -> None:
        for j, row in zip(to, rows, strict=True):
            mine = bytes_of(out[j])
            self.all(_into, mine, index, "read from", int(row) * len(mine))
        self.forget(index)

    def forget(self, index: int) -> None:
        """Have the system drop its cached pages of a point."""
        at = index * self.nbytes
        os.posix_fadvise(self.file.fileno(), at, self.nbytes, os.POSIX_FADV_DONTNEED)

    def all(
        self,
        call: Callable[[int, memoryview, int], int],
        bytes_: memoryview,
        index: int,
        what: str,
        first: int = 0,
    ) -> None:
        """Repeat a read or write until all bytes of a point from `first` on are done."""
        done, start = 0, index * self.nbytes + first
        while done < len(bytes_):
            try:
                some = call(self.file.fileno(), bytes_[done:], start + done)
            except OSError as error:
                raise self.failed(f"[{index}] cannot be {what} {self.folder}", 1, error) from None
            if not some:
                short = OSError(0, f"{done:,} of {self.nbytes:,} bytes are there")
                raise self.failed(f"[{index}] cannot be {what} {self.folder}", 1, short)
            done += some

    def close(self) -> None:
        self.file.close()


def _into(fd: int, room: memoryview, at: int) -> int:
    return os.preadv(fd, [room], at)


def bytes_of(array: np.ndarray) -> memoryview:
    """An array's memory as bytes. Raises ValueError for a view with gaps."""
    return array.reshape(-1, copy=False).view(np.uint8).data
