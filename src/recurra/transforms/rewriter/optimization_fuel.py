"""Fuel: a limit on how many rewrites a compilation may apply, and a record of those it did.

A wrong rewrite is found by bisection: the answer is right with n units of fuel and wrong with
n + 1. Passes that a program cannot be compiled without (pad) use none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Fuel:
    """A limit on rewrites (None: any number); `laws` counts those applied, by law."""

    limit: int | None = None
    used: int = 0
    last: str = ""
    laws: Counter[str] = field(default_factory=Counter[str])

    @property
    def empty(self) -> bool:
        return self.limit is not None and self.used >= self.limit

    def burn(self, law: str, where: str) -> bool:
        """Count a rewrite that is about to be applied, or has been; False: it must not be."""
        if self.empty:
            return False
        self.used += 1
        self.laws[law] += 1
        self.last = f"{law}, at {where}"
        return True


_CURRENT: ContextVar[Fuel | None] = ContextVar("fuel", default=None)


def fuel() -> Fuel:
    """Return the fuel of the current compilation; outside of one it is unlimited."""
    return _CURRENT.get() or Fuel()


@contextmanager
def limited_fuel(tank: Fuel) -> Generator[None]:
    """Make passes burn this fuel within the block."""
    token = _CURRENT.set(tank)
    try:
        yield
    finally:
        _CURRENT.reset(token)
