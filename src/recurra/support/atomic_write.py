"""Atomic writes: a file is either the old or the new one, after a kill and on a full disk too.

save      `replace` a file that the user has named, with an error for the user
replace   write a temporary file → fsync it → rename it over the target → fsync the directory
create    write a temporary file, or overwrite a spare one → rename it → fsync it and the directory
retire    delete files, but keep one as the spare one
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from recurra.errors import RecurraError

try:
    import fcntl
except ImportError:  # Windows has neither flock nor a directory fsync
    fcntl = None

_LEASE = hasattr(fcntl, "F_SETLEASE")  # needed to know whether another process reads a file
TEMPORARY, SPARE = ".part-", ".spare"
# Errors of a wrong path: it is too long, does not exist, or belongs to another user.
WRONG_PATHS = (
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
)
LARGEST = 1 << 24  # the most bytes of a spare file, which occupies the disk permanently


class NotWrittenError(RecurraError):
    """A file cannot be written: its path is wrong (exit code 2), or the disk is full (1).

    The old file is unchanged.
    """

    def __init__(self, what: str, error: OSError, more: str = ""):
        wrong = error.errno in WRONG_PATHS
        self.exit_code = 2 if wrong else 1
        facts = "; ".join(filter(None, (str(error.strerror or error), more)))
        hint = "name another place" if wrong else "free some space or choose another directory"
        super().__init__(what, facts=facts, hint=hint)


def save(path: str | Path, content: str | bytes | Iterable[bytes]) -> None:
    """Replace the file at `path`, or the target of a link, atomically; write to a pipe directly.

    Raises NotWrittenError.
    """
    chunks = content.encode() if isinstance(content, str) else content
    chunks = (chunks,) if isinstance(chunks, bytes) else chunks
    try:
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "wb", buffering=0) as pipe:
                for chunk in chunks:
                    pipe.write(chunk)

        else:
            replace(os.path.realpath(path), chunks)
    except OSError as error:
        raise NotWrittenError(f"{path} cannot be written", error) from error


def replace(path: str | Path, chunks: Iterable[bytes]) -> None:
    """Replace `path` by the concatenated chunks, atomically; raises OSError."""
    with _written(path, chunks) as temporary:
        os.fsync(temporary.fileno())
        temporary.close()
        os.replace(temporary.name, path)
    sync_directory(os.path.dirname(path))


def replace_unsynced(path: str | Path, chunks: Iterable[bytes], mode: int) -> None:
    """Replace `path` atomically, except after a power cut: readers must detect a damaged file.

    `mode`: the permissions, as far as the umask allows.
    """
    with _written(path, chunks, mode=mode) as temporary:
        temporary.close()
        os.replace(temporary.name, path)


def create(path: str | Path, chunks: Iterable[bytes]) -> None:
    """Create `path`, which must not exist, from the concatenated chunks; raises OSError.

    The file is renamed before it is on disk, so that its name and contents are written in one
    transaction of the file system: half the cost of `replace`. Overwriting a spare file halves that
    again, as no block is freed or allocated. A kill leaves the complete file or none; a power cut
    before the return may leave a damaged one, which readers must detect.
    """
    if fcntl is None:  # Windows cannot rename an open file either
        replace(path, chunks)
        return
    with _written(path, chunks, _spare(os.path.dirname(path))) as temporary:
        os.rename(temporary.name, path)
        try:
            os.fsync(temporary.fileno())
        except OSError:
            os.unlink(path)
            raise
    sync_directory(os.path.dirname(path))


def retire(directory: str | Path, names: Sequence[str]) -> None:
    """Remove files; one becomes the spare of its directory, for `create` to overwrite.

    Call it with `locked` held, once their replacement is on disk.
    """
    for name in names:
        path = os.path.join(directory, name)
        with suppress(OSError):
            if _LEASE and name is names[-1] and os.path.getsize(path) <= LARGEST:
                os.rename(path, os.path.join(directory, SPARE))
            else:
                os.unlink(path)


def _spare(directory: str) -> FileIO | None:
    """Open the spare file for overwriting, if there is one that no other process uses."""
    if not _LEASE:
        return None
    try:
        file = open(os.path.join(directory, SPARE), "r+b", buffering=0)  # noqa: SIM115 returned
    except OSError:
        return None
    if _is_exclusive(file.fileno()):
        return file
    file.close()
    return None


def _is_exclusive(handle: int) -> bool:
    """Return whether no other process has the file open or mapped, and it has no other name.

    Linux grants a write lease only then, and revokes it with a signal. False if this is unknown.
    """
    if fcntl is None or os.fstat(handle).st_nlink > 1:
        return False
    try:
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)  # a signal that is ignored by default
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True


@contextmanager
def _written(
    path: str | Path, chunks: Iterable[bytes], spare: FileIO | None = None, mode: int = 0o666
) -> Generator[FileIO, None, None]:
    """Write a temporary file beside `path`, without fsync; an error removes it."""
    folder, name = os.path.split(path)
    name = spare.name if spare else os.path.join(folder, f"{TEMPORARY}{os.getpid()}-{name}")

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, mode)

    try:
        with spare or open(name, "wb", buffering=0, opener=opener) as file:
            for chunk in chunks:
                while chunk:
                    chunk = chunk[file.write(chunk) :]
            if spare and file.tell() < os.fstat(file.fileno()).st_size:
                file.truncate()
            yield file
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # the error of a full disk has no path
        with suppress(OSError):
            os.unlink(name)
        raise


def sync_directory(path: str | Path) -> None:
    """Make renames and deletions inside `path` survive a power cut."""
    if fcntl is None:
        return
    handle = os.open(path or os.curdir, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(directory: str | Path, names: Iterable[str]) -> None:
    """Remove the temporary files of killed writers; call it with `locked` held."""
    for name in names:
        if name.startswith(TEMPORARY):
            with suppress(OSError):
                os.unlink(os.path.join(directory, name))


@contextmanager
def locked(directory: str | Path, *, shared: bool = False) -> Generator[None, None, None]:
    """Hold the directory's advisory lock, which ends with the process.

    On file systems without locks, and read-only ones, there is none: usually one process writes.
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
