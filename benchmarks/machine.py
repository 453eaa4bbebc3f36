"""The machine a time was taken on: what it is, how busy it is, and how much of it we may use."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from recurra.errors import RecurraError
from recurra.support import cpu
from recurra.support.cpu import cores

IDLE_LOAD = 0.5  # below this many busy cores over the last minute the machine counts as idle


def describe() -> dict[str, Any]:
    """Processor, usable cores, system, and the versions that decide speed."""
    return {
        "cpu": cpu.name(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jax": _version("jax"),
        "numpy": _version("numpy"),
    }


def load() -> float:
    """Busy cores, averaged over the last minute."""
    return os.getloadavg()[0]


def busy(seconds: float = 1.0) -> float:
    """Cores that work at present, by the kernel's count: those of others, while we wait here."""
    before = _busy_ticks()
    time.sleep(seconds)
    return (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def _busy_ticks() -> int:
    """user nice system idle iowait irq softirq steal, of all cores since the start."""
    user, nice, system, _, _, irq, softirq, steal, *_ = (
        int(ticks) for ticks in Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return user + nice + system + irq + softirq + steal


@contextmanager
def pinned(count: int) -> Generator[None]:
    """Keep this thread, and what it starts, on the last `count` of its cores; undone at the end.

    A thread pool takes its size and its cores when it is created: pin before the first use of jax.
    """
    before = os.sched_getaffinity(0)
    if len(before) < count:
        raise RecurraError(f"this case needs {count} cores", facts=f"{len(before)} are usable here")
    os.sched_setaffinity(0, sorted(before)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def commit() -> str | None:
    """The commit this package runs from, marked if it has changes; None outside its repository."""
    here = Path(__file__)
    tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    describe = ("describe", "--always", "--dirty", "--exclude=*", "--abbrev=12")
    return _git(here.parent, *describe) if tracked else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
