"""The memory that a process can still allocate."""

from __future__ import annotations

from pathlib import Path

GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")  # of version 2, of version 1
LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def free_bytes() -> int | None:
    """Return the bytes that can be allocated without swapping, on Linux and in containers."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    limits = [1024 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")]
    limits += [x for group in GROUPS if (x := _group_bytes(Path(group))) is not None]
    return min(limits, default=None)


def _group_bytes(group: Path) -> int | None:
    """Return the bytes that a control group may still allocate; the page cache counts as free."""
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
