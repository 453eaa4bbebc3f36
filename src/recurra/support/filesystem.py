"""Queries about folders: the kind of their file system, and whether they are writable."""

from __future__ import annotations

import os
from pathlib import Path

MEMORY = ("tmpfs", "ramfs")  # file systems in RAM


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the kind of a folder's file system, if the system is Linux; else ""."""
    if not mounts.exists():
        return ""
    lines = [line.split() for line in mounts.read_text().splitlines()]
    path = folder.resolve()
    kinds = [(len(at), kind) for _, at, kind, *_ in lines if path.is_relative_to(at)]
    return max(reversed(kinds), key=lambda x: x[0], default=(0, ""))[1]


def why_not_written(folder: str | os.PathLike[str]) -> str | None:
    """Return why a folder, which may not exist yet, is not writable; None if it is."""
    path = Path(folder).absolute()
    nearest = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not nearest.is_dir():
        return f"{nearest} is no folder"
    writable = os.access(nearest, os.W_OK | os.X_OK)
    return None if writable else f"{nearest} may not be written to"
