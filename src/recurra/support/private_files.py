"""Private files: what is loaded as code belongs to this user, and nobody else can have written it.

    ~/.cache                             given: others may use it, in whatever way
    ~/.cache/recurra/programs            ours: folders that only this user may write
    ~/.cache/recurra/programs/3f0c../..  what is read if all on the way is as it was made

Windows keeps the folders of users apart by other means, and is not asked for owners and modes.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from recurra.errors import RecurraError

_STRICT = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe is not waited for


class NotPrivateError(RecurraError):
    """A file or folder that somebody else can write, or that is none."""

    exit_code = 1


def user_cache_folder() -> Path:
    """Return the folder of this user's caches, in which each program has one of its own.

    Raises RecurraError if the user has no home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # its specification says to ignore others
        return Path(given)
    try:
        return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    except RuntimeError as error:
        raise RecurraError(
            "there is no folder for what is kept",
            facts=str(error),
            hint="name one: XDG_CACHE_HOME=/folder",
        ) from None


def cache_folder() -> Path:
    """Return the folder that caches of ours are below, in `recurra`: $RECURRA_CACHE, or the user's.

    RECURRA_CACHE=0 says of programs alone that they are not kept. Raises RecurraError if there is
    no such variable and the user has no home.
    """
    given = os.environ.get("RECURRA_CACHE", "")
    return Path(given) if given not in ("", "0") else user_cache_folder()


def make_folder(folder: Path, given: Path) -> None:
    """Make a private folder, and those between it and `given`.

    Raises NotPrivateError if one is there that is not private, and OSError.
    """
    given.mkdir(parents=True, exist_ok=True)
    for path in _below(folder, given):
        path.mkdir(mode=0o700, exist_ok=True)
        _expect_private(path, os.lstat(path), stat.S_ISDIR)


def expect_private(path: Path, given: Path) -> None:
    """Raise NotPrivateError if a file, or a folder between it and `given`, is not private.

    Raises OSError if there is none.
    """
    *folders, file = _below(path, given)
    for folder in folders:
        _expect_private(folder, os.lstat(folder), stat.S_ISDIR)
    _expect_private(file, os.lstat(file), stat.S_ISREG)


def read(path: Path, given: Path) -> bytes:
    """Return the contents of a private file; raise as `expect_private` does."""
    expect_private(path, given)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _STRICT)) as file:
        _expect_private(path, os.fstat(file.fileno()), stat.S_ISREG)  # the one that was looked at?
        return file.read()


def _below(path: Path, given: Path) -> Iterator[Path]:
    """Yield the paths between a folder and what lies in it, the outermost first."""
    at = given
    for name in path.relative_to(given).parts:
        at = at / name
        yield at


def _expect_private(path: Path, status: os.stat_result, has_kind: Callable[[int], bool]) -> None:
    what, facts = f"{path} may hold the code of somebody else", ""
    if not has_kind(status.st_mode):
        facts = f"it is {_kind(status.st_mode)}, not {dict(_KINDS)[has_kind]}"
    elif hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        facts = f"it belongs to user {status.st_uid}, and this is user {os.geteuid()}"
    elif hasattr(os, "geteuid") and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        facts = f"other users can write it, its mode is {stat.S_IMODE(status.st_mode):o}"
    if facts:
        raise NotPrivateError(what, facts=facts, hint="remove it: it is made again")


_KINDS = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a file"))


def _kind(mode: int) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
