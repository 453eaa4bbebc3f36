"""Folders: which of them are on a disk, which in memory, and which can be written to."""

from __future__ import annotations

import os
from pathlib import Path

MEMORY = ("tmpfs", "ramfs")  # file systems that are none of a disk


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The kind of the file system that a folder is on, as Linux tells it; else nothing."""
    if not mounts.exists():
        return ""
    lines = [line.split() for line in mounts.read_text().splitlines()]
    place = folder.resolve()
    found = [(len(at), kind) for _, at, kind, *_ in lines if place.is_relative_to(at)]
    longest = max((length for length, _ in found), default=0)
    return next((kind for length, kind in reversed(found) if length == longest), "")


def why_not_written(folder: str | os.PathLike[str]) -> str | None:
    """Why nothing can be written in a folder, which may have to be made first; None: it can be."""
    place = Path(folder).absolute()
    nearest = next(p for p in (place, *place.parents) if os.path.lexists(p))
    if not nearest.is_dir():
        return f"{nearest} is no folder"
    writable = os.access(nearest, os.W_OK | os.X_OK)
    return None if writable else f"{nearest} may not be written to"
