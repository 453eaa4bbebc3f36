"""RAM as the fast memory, a file as the slow one, past the page cache where the system allows it.

The file is unlinked as soon as it is open, so that a killed run leaves nothing.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recurra.errors import RecurraError, either
from recurra.mapping.execute.memories import PAGE, Bytes, SlowMemory, whole_pages
from recurra.mapping.execute.workload import Array, TensorSpec
from recurra.support.filesystem import MEMORY, file_system

HUGE = 2 << 20  # bytes of a huge page


@dataclass(frozen=True)
class Ram:
    """Fast memory is RAM; the slow one is a file in `folder`, or where temporary files go."""

    folder: Path | None = None

    def allocate(self, nbytes: int) -> Bytes:
        return pages(nbytes)

    def view_as(self, block: Bytes, tensor: TensorSpec) -> Array:
        return tensor.view_as(block)

    def put(self, values: Bytes, block: Bytes) -> None:
        block[: len(values)] = values

    def get(self, block: Bytes) -> Bytes:
        return block.copy()

    def slow(self, nbytes: int) -> DiskFile:
        return DiskFile(self.folder, nbytes)


def pages(nbytes: int) -> Bytes:
    """Allocate page-aligned memory, and touch each page.

    From `HUGE` bytes on it uses huge pages, where the system has them: direct I/O to small pages
    takes up to three times as long, the more they are scattered, and two blocks are never alike.
    """
    size = max(PAGE, whole_pages(nbytes))
    more = HUGE - size % HUGE + HUGE if size >= HUGE else 0
    try:
        mapped = mmap.mmap(-1, size + more, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise RecurraError(f"there is no memory of {nbytes:,} B", facts=str(error)) from None
    if more and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(mapped, np.uint8)
    start = -block.ctypes.data % HUGE if more else 0
    block = block[start : start + size]
    block[:] = 0
    return block


class DiskFile(SlowMemory):
    """A file of `nbytes` in `folder`, or in the system's folder of temporary files."""

    def __init__(self, folder: Path | None, nbytes: int) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.nbytes = whole_pages(nbytes)
        self.no_direct_reason, self.direct = "", True
        self.file = self._open()
        try:
            if self.nbytes:
                os.posix_fallocate(self.file, 0, self.nbytes)
            # Write every page once: the first write of a page costs more than those after it.
            block = pages(min(self.nbytes, 1 << 20))
            for at in range(0, self.nbytes, len(block)):
                self.write(block[: self.nbytes - at], at)
        except OSError as error:
            self.close()
            raise self._refused("hold the slow memory", error) from None

    def _open(self) -> int:
        try:
            file, path = tempfile.mkstemp(prefix="slow-memory-", dir=self.folder)
        except OSError as error:
            raise self._refused("hold the slow memory", error) from None
        try:
            direct = os.open(path, os.O_RDWR | getattr(os, "O_DIRECT", 0))
            self.direct = hasattr(os, "O_DIRECT")
            os.close(file)
            file = direct
        except OSError as error:  # the file system has no direct I/O
            self.direct, self.no_direct_reason = False, f" ({error.strerror})"
        os.unlink(path)
        kind = file_system(self.folder)
        if kind in MEMORY:
            self.direct, self.no_direct_reason = False, f" ({kind} is RAM)"
        return file

    def __str__(self) -> str:
        text = f"slow memory: {self.nbytes / 2**20:.0f} MiB in {self.folder}, "
        if self.direct:
            return f"{text}direct I/O"
        return f"{text}without direct I/O{self.no_direct_reason}: RAM may hide the disk"

    def _read(self, into: Bytes, at: int) -> None:
        self._move(os.preadv, into, at, "read")

    def _write(self, of: Bytes, at: int) -> None:
        self._move(os.pwritev, of, at, "written")

    def _move(self, move: Callable[..., int], array: Bytes, at: int, what: str) -> None:
        done = 0
        while done < len(array):
            try:
                moved = move(self.file, [array[done:].data], at + done)
            except OSError as error:
                raise self._refused(f"have bytes {at}..{at + len(array)} {what}", error) from None
            if moved <= 0:
                raise RecurraError(
                    f"slow memory in {self.folder}: it ends at byte {at + done}",
                    facts=f"bytes {at}..{at + len(array)} of {self.nbytes} were to be {what}",
                    hint="somebody cut the file while the program ran",
                )
            done += moved

    def _refused(self, what: str, error: OSError) -> RecurraError:
        return RecurraError(
            f"slow memory in {self.folder}: the disk did not {what}",
            facts=f"{error.strerror}; the slow memory takes {self.nbytes:,} B",
            hint=either("--folder names another disk", "Ram(folder) names another disk"),
        )

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
