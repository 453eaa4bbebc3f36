"""Arena: one block of memory for the stores of a program, which share bytes."""

from __future__ import annotations

from dataclasses import dataclass

from recurra.report.html import table_html


@dataclass(frozen=True)
class LiveRange:
    """The live range of a store: its bytes, and the first and last step at which it is needed."""

    store: str
    nbytes: int
    first: int
    last: int

    def overlaps(self, other: LiveRange) -> bool:
        """Tell whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """Offsets of stores in one block; `load`, the bytes of the fullest step, is the lower bound.

    `least`: no smaller arena exists, which is proven.
    """

    live_ranges: tuple[LiveRange, ...]
    offsets: tuple[int, ...]
    nbytes: int
    load: int
    by: str
    least: bool = False

    @property
    def places(self) -> dict[str, int]:
        """The offset of each store."""
        return {x.store: at for x, at in zip(self.live_ranges, self.offsets, strict=True)}

    @property
    def stack(self) -> list[str]:
        """Stores directly on top of each other, from the end of the arena down: why it is so
        large."""
        stack: list[str] = []
        upper = LiveRange("", 0, 0, max((x.last for x in self.live_ranges), default=0))
        top = self.nbytes
        while below := [
            (x, at)
            for x, at in zip(self.live_ranges, self.offsets, strict=True)
            if at + x.nbytes == top and x.overlaps(upper)
        ]:
            upper, top = below[0]
            stack.append(upper.store)
        return stack

    @property
    def unshared_bytes(self) -> int:
        """The bytes of all stores, each in a buffer of its own."""
        return sum(x.nbytes for x in self.live_ranges)

    @property
    def fragmentation(self) -> float:
        """The fraction of the arena that no store uses at the fullest step."""
        return 1 - self.load / self.nbytes if self.nbytes else 0.0

    def __str__(self) -> str:
        rows = [
            f"{at:>14,}  {x.store}  {x.nbytes:,} B, alive in steps {x.first}..{x.last}"
            for at, x in sorted(
                zip(self.offsets, self.live_ranges, strict=True), key=lambda p: p[0]
            )
        ]
        return "\n".join([*rows, self.total])

    @property
    def total(self) -> str:
        """The size in words, beside the size of separate buffers."""
        lost = f"{self.fragmentation:.1%} lost to fragmentation"
        proven = ", none is smaller" if self.least else ""
        return (
            f"arena {self.nbytes:,} B by {self.by}{proven}, {lost}; apart {self.unshared_bytes:,} B"
        )

    def _repr_html_(self) -> str:
        rows = [
            {"offset": at, "store": x.store, "bytes": x.nbytes, "steps": f"{x.first}..{x.last}"}
            for at, x in zip(self.offsets, self.live_ranges, strict=True)
        ]
        return table_html(rows) + f"<p>{self.total}</p>"
