"""Call sites of blocks: where the last blocks were off, the next ones do not intercept operators.

    a block intercepts operators, and the trial runs them without the window ×4 → rest 0.1 s

So a block costs a few µs while it is off, and a new program at the same line is noticed soon.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType

ENOUGH, REST = 4, 0.1  # blocks in a row; seconds
MOST = 256  # call sites that are remembered
USED = ("deferred", "inlined", "views and parts", "alone", "learned")

_sites: dict[tuple[object, ...], Site] = {}


@dataclass
class Site:
    """The last blocks that began at one call site."""

    counts: dict[str, float] = field(default_factory=dict[str, float])
    off: int = 0  # in a row
    until: float = 0.0

    def is_paused(self) -> bool:
        """Return whether the next block does not intercept operators."""
        return self.off >= ENOUGH and time.perf_counter() < self.until

    def ended(self, counts: Mapping[str, float]) -> None:
        """Record the counts of a block that intercepted operators."""
        self.counts = dict(counts)
        self.off = 0 if any(counts[name] for name in USED) else self.off + 1
        self.until = time.perf_counter() + REST


def site_of(frame: FrameType, *options: object) -> Site:
    """Return the site of a frame's current instruction."""
    key = (frame.f_code, frame.f_lasti, *options)
    site = _sites.get(key)
    if site is None:
        if len(_sites) >= MOST:
            _sites.clear()
        site = _sites[key] = Site()
    return site
