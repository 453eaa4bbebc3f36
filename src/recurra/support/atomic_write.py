"""Files that are either the old or the new, whenever the process dies or the disk is full.

save      `replace` a file that the user has named; who cannot is told why
replace   write a temporary file → fsync it → rename it over the target → fsync the directory
create    write a temporary file, or over a spare one → rename it → fsync it and the directory
retire    rename what is no longer needed to be the spare one
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

_LEASE = hasattr(fcntl, "F_SETLEASE")  # without, nobody knows who reads a file
TEMPORARY, SPARE = ".part-", ".spare"
# What the system says of a path that was written wrong: too long, nowhere, or another's.
WRONG_PATHS = (
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
)
LARGEST = 1 << 24  # bytes of a spare file: it takes their room for as long as the folder is there


class NotWrittenError(RecurraError):
    """A file cannot be written: its path is wrong (exit code 2), or the disk full (1).

    What was there before is as it was.
    """

    def __init__(self, what: str, error: OSError, more: str = ""):
        wrong = error.errno in WRONG_PATHS
        self.exit_code = 2 if wrong else 1
        facts = "; ".join(filter(None, (str(error.strerror or error), more)))
        hint = "name another place" if wrong else "free some space or choose another directory"
        super().__init__(what, facts=facts, hint=hint)


def save(path: str | Path, content: str | bytes | Iterable[bytes]) -> None:
    """Replaces what is at `path`, or where that links to, all or nothing.

    A pipe or a terminal is written to. Raises NotWrittenError.
    """
    chunks = content.encode() if isinstance(content, str) else content
    chunks = (chunks,) if isinstance(chunks, bytes) else chunks
    try:
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "wb", buffering=0) as there:
                for chunk in chunks:
                    there.write(chunk)
        else:
            replace(os.path.realpath(path), chunks)
    except OSError as error:
        raise NotWrittenError(f"{path} cannot be written", error) from error


def replace(path: str | Path, chunks: Iterable[bytes]) -> None:
    """Replaces `path` by the concatenated chunks, all or nothing; raises OSError."""
    with _written(path, chunks) as temporary:
        os.fsync(temporary.fileno())
        temporary.close()
        os.replace(temporary.name, path)
    sync_directory(os.path.dirname(path))


def replace_unsynced(path: str | Path, chunks: Iterable[bytes], mode: int) -> None:
    """Replaces `path` as `replace` does, but for a power cut: its reader must find a damaged file.

    `mode` says who may read and write it, as far as the umask allows.
    """
    with _written(path, chunks, mode=mode) as temporary:
        temporary.close()
        os.replace(temporary.name, path)


def create(path: str | Path, chunks: Iterable[bytes]) -> None:
    """Makes `path`, which must not be there, of the concatenated chunks; raises OSError.

    The file has its name before it is on disk, so that its name and contents go there in one
    transaction of the file system: half the price of `replace`. To write over a spare file takes
    half of that again, as no block is freed or found. Whoever is killed leaves the whole file or
    none; a power cut before the return may leave a damaged one, which its reader must find.
    """
    if fcntl is None:  # nor a name for a file that is open
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
    """Removes files; one becomes the spare of its directory, for `create` to write over.

    Call it with `locked` held, once what takes their place is on disk.
    """
    for name in names:
        path = os.path.join(directory, name)
        with suppress(OSError):
            if _LEASE and name is names[-1] and os.path.getsize(path) <= LARGEST:
                os.rename(path, os.path.join(directory, SPARE))
            else:
                os.unlink(path)


def _spare(directory: str) -> FileIO | None:
    """The spare file, to be written over, if there is one that nobody else can see."""
    if not _LEASE:
        return None
    try:
        file = open(os.path.join(directory, SPARE), "r+b", buffering=0)  # noqa: SIM115 it is given
    except OSError:
        return None
    if _alone(file.fileno()):
        return file
    file.close()
    return None


def _alone(handle: int) -> bool:
    """Has no one else the file open, mapped, or under another name? Where no one can say: no.

    Linux gives a write lease to those who are alone, and takes it back by a signal.
    """
    if fcntl is None or os.fstat(handle).st_nlink > 1:
        return False
    try:
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True


@contextmanager
def _written(
    path: str | Path, chunks: Iterable[bytes], spare: FileIO | None = None, mode: int = 0o666
) -> Generator[FileIO, None, None]:
    """A temporary file beside `path`, written, not yet on disk; it is gone after an error."""
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
            error.filename = str(path)  # a full disk does not say whose
        with suppress(OSError):
            os.unlink(name)
        raise


def sync_directory(path: str | Path) -> None:
    """Makes renames and deletions inside `path` survive a power cut."""
    if fcntl is None:
        return
    handle = os.open(path or os.curdir, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(directory: str | Path, names: Iterable[str]) -> None:
    """Removes the temporary files of writers that were killed; call it with `locked` held."""
    for name in names:
        if name.startswith(TEMPORARY):
            with suppress(OSError):
                os.unlink(os.path.join(directory, name))


@contextmanager
def locked(directory: str | Path, *, shared: bool = False) -> Generator[None, None, None]:
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
