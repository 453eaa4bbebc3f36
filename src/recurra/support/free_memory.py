"""The memory that a process may still take."""

from __future__ import annotations

from pathlib import Path

GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")  # of version 2, of version 1
LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def free_bytes() -> int | None:
    """Memory that could be had without swapping, where Linux says so, also inside a container."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = next((x for x in lines if x.startswith("MemAvailable:")), None)
    known = [] if found is None else [1024 * int(found.split()[1])]
    known += [x for group in GROUPS if (x := _left(Path(group))) is not None]
    return min(known, default=None)


def _left(group: Path) -> int | None:
    """The bytes that a control group may still take, less pages that only copy files."""
    for limit, usage in LIMITS:
        try:
            most, used = ((group / x).read_text().strip() for x in (limit, usage))
            lines = (group / "memory.stat").read_text().splitlines()
        except OSError:
            continue
        stat = dict(x.split() for x in lines if x.count(" ") == 1)
        if most.isdecimal():
            return max(0, int(most) - int(used) + int(stat.get("inactive_file", 0)))
    return None
