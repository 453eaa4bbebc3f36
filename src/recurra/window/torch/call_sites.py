"""Lines where blocks begin: where the last ones ran without the window, the next are nothing.

    a block looks at its operators, and the clock has it run without the window ×4 → rest 0.1 s

So a block costs a few µs while it is off, and what begins there anew is seen soon.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType

ENOUGH, REST = 4, 0.1  # blocks in a row; seconds
MOST = 256  # lines that are remembered
LOOKED_AT = ("deferred", "inlined", "views and parts", "alone", "learned")

_sites: dict[tuple[object, ...], Site] = {}


@dataclass
class Site:
    """The record of the last blocks that began at one place."""

    counts: dict[str, float] = field(default_factory=dict[str, float])
    off: int = 0  # in a row
    until: float = 0.0

    def rests(self) -> bool:
        """Does the next block run without the window, unexamined?"""
        return self.off >= ENOUGH and time.perf_counter() < self.until

    def ended(self, counts: Mapping[str, float]) -> None:
        """A block that was looked at did this."""
        self.counts = dict(counts)
        self.off = 0 if any(counts[name] for name in LOOKED_AT) else self.off + 1
        self.until = time.perf_counter() + REST


def site_of(frame: FrameType, *options: object) -> Site:
    """The site of the line that a frame is at."""
    key = (frame.f_code, frame.f_lasti, *options)
    site = _sites.get(key)
    if site is None:
        if len(_sites) >= MOST:
            _sites.clear()
        site = _sites[key] = Site()
    return site
