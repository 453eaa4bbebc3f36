"""The window in the GPU: slots of kernel identifiers, and the module that loads upstream sets.

The host compares a kernel with the last M that it sent, done or not, without queries to the GPU.
Its upstream set may be stale by kernels that are done, which are dropped since they are in no slot.
It never misses one that still runs: a kernel that comes more than M after the oldest in the window
is not accepted (section IV-C, fig. 20).
"""

from __future__ import annotations


class HardwareWindow:
    """`size` slots (N) for a host whose list holds `scheduled` kernels (M)."""

    def __init__(self, size: int, scheduled: int):
        self.size, self.scheduled = size, scheduled
        self._upstream: dict[int, set[int]] = {}  # of the kernels in slots, oldest first

    def accepts(self, kernel: int) -> bool:
        """Return whether a slot is free, and the oldest kernel is near enough."""
        oldest = next(iter(self._upstream), kernel)
        return len(self._upstream) < self.size and kernel - oldest <= self.scheduled

    def insert(self, kernel: int, stale: set[int]) -> list[int]:
        """Insert the next kernel, with the host's upstream set; return [kernel] if it is ready."""
        upstream = stale & self._upstream.keys()
        self._upstream[kernel] = upstream
        return [] if upstream else [kernel]

    def retire(self, kernel: int) -> list[int]:
        """Remove a kernel that is done; return those that are ready now."""
        del self._upstream[kernel]
        waited = [k for k, upstream in self._upstream.items() if kernel in upstream]
        for k in waited:
            self._upstream[k].discard(kernel)
        return [k for k in waited if not self._upstream[k]]
