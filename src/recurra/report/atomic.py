"""Files that are either the old or the new, whenever the process dies or the disk is full.

write a temporary file → fsync it → rename it over the target → fsync the directory
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows has neither flock nor a directory fsync
    fcntl = None

TEMPORARY = ".part-"


def write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Replaces `path` by the concatenated chunks, all or nothing; raises OSError."""
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        with open(temporary, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes renames and deletions inside `path` survive a power cut."""
    if fcntl is None:
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(directory: Path) -> None:
    """Removes the temporary files of writers that were killed; call it with `locked` held."""
    for path in directory.glob(f"{TEMPORARY}*"):
        with suppress(OSError):
            path.unlink()


@contextmanager
def locked(directory: Path, *, shared: bool = False) -> Generator[None, None, None]:
    """Holds the directory's advisory lock; it dies with the process.

    File systems without locks, and read-only ones, go without: one writer is the usual case.
    """
    file: IO[bytes] | None = None
    if fcntl is not None:
        with suppress(OSError):
            file = open(directory / ".lock", "ab")  # noqa: SIM115
            fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        if file is not None:
            file.close()
