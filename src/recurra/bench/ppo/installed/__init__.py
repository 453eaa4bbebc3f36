"""Real peers, installed as their users do, one virtual environment each; nothing of it in tests."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from recurra.bench.ppo.process import Process
from recurra.bench.ppo.work import Work


@dataclass(frozen=True)
class Peer:
    """A contestant by the name of what makes it, `module:function`, and the Python that runs it."""

    make: str
    python: str = sys.executable
    real: bool = False  # made by others: it may be absent

    def started(self, work: Work, threads: int) -> Process:
        """Its process; `Ended` if it cannot run."""
        return Process(self.make, work, threads, self.python)


def installed(folder: Path) -> list[Peer]:
    return []
