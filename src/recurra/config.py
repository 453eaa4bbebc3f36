"""Every environment variable, in one table.

| variable | means |
|---|---|
| `RECURRA_LOG=passes` | one line per pass on standard error: equations before and after, ms |
| `RECURRA_DUMP=dir` | stages as text: 00-trace.txt, 01-simplify.txt, .., schedule, plan, program |
| `RECURRA_CHECK=1` | the plan is run with points for values and must be right (small bounds) |
| `RECURRA_BLESS=1` | tests rewrite their expected texts |
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Config:
    """What the environment asks for."""

    log: frozenset[str] = frozenset()
    dump: Path | None = None
    check: bool = False


def config() -> Config:
    """Read anew at every compilation."""
    log = frozenset(x for x in os.environ.get("RECURRA_LOG", "").split(",") if x)
    dump = os.environ.get("RECURRA_DUMP")
    return Config(log, Path(dump) if dump else None, os.environ.get("RECURRA_CHECK") == "1")
