"""The processor: its name, and all of it that compiled code depends on."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path


def name() -> str:
    """The processor's name, by its maker."""
    names = (x.split(":", 1)[1].strip() for x in _lines() if x.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@cache
def kind() -> str:
    """A name for this kind of processor, as a folder can have it: maker, model and cache."""
    words = ("vendor_id", "cpu family", "model", "model name", "cache size")
    told = {a.strip(): b.strip() for a, _, b in (x.partition(":") for x in reversed(_lines()))}
    name = " ".join(told[word] for word in words if word in told) or platform.machine()
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def described() -> str:
    """The architecture, name and instructions: code made for one processor is not for another."""
    told = sorted({x for x in _lines() if x.startswith(("flags", "model name", "Features"))})
    return f"{platform.machine()} {platform.processor()} {told}"


def cores() -> int:
    """The number of cores that this thread may run on."""
    told = getattr(os, "sched_getaffinity", None)
    return len(told(0)) if told is not None else os.cpu_count() or 1


def _lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
