"""A contestant of the bench of memory that needs little to start."""

from __future__ import annotations

from benchmarks.memory.workload import Work

HOLDS = 300_000_000


class Holder:
    """A contestant that holds so much memory once it runs."""

    name = "holder"

    def __init__(self, work: Work) -> None:
        self.held = b""

    def run(self, k: int) -> None:
        self.held = b"x" * HOLDS
