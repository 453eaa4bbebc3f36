"""Fuel: how many rewrites may still be applied, and which were.

A wrong rewrite is found by bisection: with n it is not there yet, with n + 1 it is. Passes without
which nothing runs (pad, place) are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Fuel:
    """`limit` rewrites at most (None: any number); `laws` says which were applied, how often."""

    limit: int | None = None
    used: int = 0
    last: str = ""
    laws: Counter[str] = field(default_factory=Counter[str])

    @property
    def empty(self) -> bool:
        return self.limit is not None and self.used >= self.limit

    def burn(self, law: str, where: str) -> bool:
        """One rewrite is to be applied, or has been; False: it must not be."""
        if self.empty:
            return False
        self.used += 1
        self.laws[law] += 1
        self.last = f"{law}, at {where}"
        return True


_CURRENT: ContextVar[Fuel | None] = ContextVar("fuel", default=None)


def fuel() -> Fuel:
    """The fuel of the compilation that passes belong to; outside of one it never runs out."""
    return _CURRENT.get() or Fuel()


@contextmanager
def burning(tank: Fuel) -> Generator[None]:
    """Within, passes burn this fuel."""
    token = _CURRENT.set(tank)
    try:
        yield
    finally:
        _CURRENT.reset(token)
