"""The processor: its name, and all of it that compiled code depends on."""

from __future__ import annotations

import platform
from pathlib import Path


def name() -> str:
    """As its maker calls it."""
    names = (x.split(":", 1)[1].strip() for x in _lines() if x.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def described() -> str:
    """Its architecture, name and instructions: code made for one processor is not for another."""
    told = sorted({x for x in _lines() if x.startswith(("flags", "model name", "Features"))})
    return f"{platform.machine()} {platform.processor()} {told}"


def _lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
