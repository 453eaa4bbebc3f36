"""Files that are either the old or the new, whenever the process dies or the disk is full.

replace   write a temporary file → fsync it → rename it over the target → fsync the directory
create    write a temporary file → rename it → fsync it and the directory
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has neither flock nor a directory fsync
    fcntl = None

TEMPORARY = ".part-"


def replace(path: Path, chunks: Iterable[bytes]) -> None:
    """Replaces `path` by the concatenated chunks, all or nothing; raises OSError."""
    with _written(path, chunks) as temporary:
        os.fsync(temporary.fileno())
        temporary.close()
        os.replace(temporary.name, path)
    sync_directory(path.parent)


def create(path: Path, chunks: Iterable[bytes]) -> None:
    """Makes `path`, which must not be there, of the concatenated chunks; raises OSError.

    The file has its name before it is on disk, so that its name and contents go there in one
    transaction of the file system: half the price of `replace`. Whoever is killed leaves the whole
    file or none; a power cut before the return may leave a damaged one, which its reader must find.
    """
    if fcntl is None:  # nor a name for a file that is open
        replace(path, chunks)
        return
    with _written(path, chunks) as temporary:
        os.rename(temporary.name, path)
        try:
            os.fsync(temporary.fileno())
        except OSError:
            os.unlink(path)
            raise
    sync_directory(path.parent)


@contextmanager
def _written(path: Path, chunks: Iterable[bytes]) -> Generator[FileIO, None, None]:
    """A temporary file beside `path`, written, not yet on disk; it is gone after an error."""
    name = os.path.join(path.parent, f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        with open(name, "wb", buffering=0) as file:
            for chunk in chunks:
                while chunk:
                    chunk = chunk[file.write(chunk) :]
            yield file
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def sync_directory(path: Path) -> None:
    """Makes renames and deletions inside `path` survive a power cut."""
    if fcntl is None:
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(directory: Path, names: Iterable[str]) -> None:
    """Removes the temporary files of writers that were killed; call it with `locked` held."""
    for name in names:
        if name.startswith(TEMPORARY):
            with suppress(OSError):
                os.unlink(directory / name)


@contextmanager
def locked(directory: Path, *, shared: bool = False) -> Generator[None, None, None]:
    """Holds the directory's advisory lock; it dies with the process.

    File systems without locks, and read-only ones, go without: one writer is the usual case.
    """
    handle: int | None = None
    if fcntl is not None:
        with suppress(OSError):
            handle = os.open(os.path.join(directory, ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)
