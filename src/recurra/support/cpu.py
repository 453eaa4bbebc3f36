"""The processor: its name, cores, and the features that compiled code depends on."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path


def name() -> str:
    """Return the maker's name of the processor."""
    names = (x.split(":", 1)[1].strip() for x in _lines() if x.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@cache
def kind() -> str:
    """Return a folder name for this kind of processor: maker, model and cache."""
    keys = ("vendor_id", "cpu family", "model", "model name", "cache size")
    values = {a.strip(): b.strip() for a, _, b in (x.partition(":") for x in reversed(_lines()))}
    name = " ".join(values[key] for key in keys if key in values) or platform.machine()
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def fingerprint() -> str:
    """Return the architecture, name and instruction sets, for which code is compiled."""
    lines = sorted({x for x in _lines() if x.startswith(("flags", "model name", "Features"))})
    return f"{platform.machine()} {platform.processor()} {lines}"


def cores() -> int:
    """Return the number of cores that this thread may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
