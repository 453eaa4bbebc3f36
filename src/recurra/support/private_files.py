"""Private files: code is loaded only from files of this user that nobody else can write.

    ~/.cache                             the base, which others may use
    ~/.cache/recurra/programs            private folders, which only this user may write
    ~/.cache/recurra/programs/3f0c../..  files, read only if all folders on the path are private

Windows separates the folders of users by other means; owners and modes are not checked there.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from recurra.errors import RecurraError

_STRICT = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # no links, no wait for pipes


class NotPrivateError(RecurraError):
    """A file or folder that another user can write, or that is of another kind."""

    exit_code = 1


def user_cache_folder() -> Path:
    """Return the folder of this user's caches, in which each program has its own folder.

    Raises RecurraError if the user has no home.
    """
    configured = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(configured):  # its specification says to ignore relative paths
        return Path(configured)
    try:
        return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    except RuntimeError as error:
        raise RecurraError(
            "there is no folder for what is kept",
            facts=str(error),
            hint="name one: XDG_CACHE_HOME=/folder",
        ) from None


def cache_folder() -> Path:
    """Return the folder in which our caches are, in `recurra`: $RECURRA_CACHE, or the user's.

    RECURRA_CACHE=0 turns only the cache of programs off. Raises RecurraError if there is no such
    variable and the user has no home.
    """
    configured = os.environ.get("RECURRA_CACHE", "")
    return Path(configured) if configured not in ("", "0") else user_cache_folder()


def make_folder(folder: Path, base: Path) -> None:
    """Make a private folder, and those between it and `base`.

    Raises NotPrivateError if one exists that is not private, and OSError.
    """
    base.mkdir(parents=True, exist_ok=True)
    for path in _below(folder, base):
        path.mkdir(mode=0o700, exist_ok=True)
        _expect_private(path, os.lstat(path), stat.S_ISDIR)


def expect_private(path: Path, base: Path) -> None:
    """Raise NotPrivateError if a file, or a folder between it and `base`, is not private.

    Raises OSError if it does not exist.
    """
    *folders, file = _below(path, base)
    for folder in folders:
        _expect_private(folder, os.lstat(folder), stat.S_ISDIR)
    _expect_private(file, os.lstat(file), stat.S_ISREG)


def read(path: Path, base: Path) -> bytes:
    """Return the contents of a private file; raises the errors of `expect_private`."""
    expect_private(path, base)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _STRICT)) as file:
        _expect_private(path, os.fstat(file.fileno()), stat.S_ISREG)  # it may have changed
        return file.read()


def _below(path: Path, base: Path) -> Iterator[Path]:
    """Yield the paths below a folder that lead to another path, the outermost first."""
    at = base
    for name in path.relative_to(base).parts:
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
