"""A limit of memory that the system keeps: a process that needs more is killed, and nobody else.

A memory cgroup where one can be made (version 1 or 2): it counts what the process and its children
touch, with the pages that are cached for it, of which it takes back what nobody needs. Elsewhere a
thread that looks at resident memory every few milliseconds and kills: RLIMIT_RSS does nothing.

    python -m benchmarks.memory.memory_limit GROUP command ..        the command, in that group
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PERIOD = 0.005  # seconds between two looks


@dataclass
class Limit:
    """A limit in bytes (0: none); a command is started with `before` in front, then `watch`ed."""

    nbytes: int
    group: Path | None
    most: int = 0
    killed: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def before(self) -> Sequence[str]:
        """What puts a command under the limit."""
        return () if self.group is None else (sys.executable, "-m", __name__, str(self.group))

    def watch(self, pid: int) -> None:
        """From now on; where a group does it there is nothing to do."""
        if self.group is None:
            threading.Thread(target=self._look, args=(pid,), daemon=True).start()

    def _look(self, pid: int) -> None:
        while not self.ended.is_set():
            with suppress(OSError):
                self.most = max(self.most, resident(pid))
                if self.nbytes and self.most > self.nbytes:
                    self.killed = True
                    os.kill(pid, signal.SIGKILL)
                    return
            time.sleep(PERIOD)

    def read(self) -> None:
        """What the group has counted: the most bytes, and whether it had to kill."""
        if self.group is None:
            return
        if (self.group / "memory.max").exists():
            with suppress(OSError):
                self.most = int((self.group / "memory.peak").read_text())
            events = (self.group / "memory.events").read_text()
        else:
            self.most = int((self.group / "memory.max_usage_in_bytes").read_text())
            events = (self.group / "memory.oom_control").read_text()
        counts = dict(line.split() for line in events.splitlines())
        self.killed = int(counts.get("oom_kill", "0")) > 0


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def limited(nbytes: int = 0) -> Generator[Limit]:
    """A limit for what is started within; at the end it says what was used."""
    found = Limit(nbytes, made(nbytes))
    try:
        yield found
        found.read()
    finally:
        found.ended.set()
        if found.group is not None:
            with suppress(OSError):
                found.group.rmdir()


def made(nbytes: int) -> Path | None:
    """A new group with that limit; None where none can be made."""
    for parent, names in (
        (CGROUPS / "memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
        (CGROUPS, ("memory.max", "memory.swap.max")),
    ):
        group = parent / f"recurra-{os.getpid()}-{time.monotonic_ns()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if nbytes:
                (group / names[0]).write_text(str(nbytes))
                with suppress(OSError):  # nothing of it goes to the system's swap
                    (group / names[1]).write_text("0" if "swap" in names[1] else str(nbytes))
            if not (group / names[0]).exists():
                raise OSError(f"{group} counts no memory")
        except OSError:
            group.rmdir()
            continue
        return group
    return None


if __name__ == "__main__":
    (Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
    os.execvp(sys.argv[2], sys.argv[2:])
