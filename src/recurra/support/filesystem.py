"""Folders: which of them are on a disk, and which in memory."""

from __future__ import annotations

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
