"""Memory of a process, as Linux counts it; and the numbers that a process of its own prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from documents import ROOT, env


def peak() -> int:
    """Bytes that this process has had in memory at most, since `forget_peak`."""
    return _status("VmHWM")


def resident() -> int:
    """Bytes that this process has in memory."""
    return _status("VmRSS")


def forget_peak() -> None:
    """Begins again: a process inherits the peak of who started it."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def numbers(script: str, *arguments: str, **variables: str) -> list[float]:
    """What a script prints in a process of its own, which may import this module."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=env(**variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return [float(word) for word in done.stdout.split()]
