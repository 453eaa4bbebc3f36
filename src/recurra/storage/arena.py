"""Arena: one block of memory for the stores of a program, which share bytes."""

from __future__ import annotations

from dataclasses import dataclass

from recurra.report.html import table_html


@dataclass(frozen=True)
class Life:
    """A store, its bytes, the first and last step at which it is needed."""

    store: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """The places of stores in one block; no arena is smaller than `load`, the fullest step.

    `least`: it is proven that there is none smaller.
    """

    lives: tuple[Life, ...]
    offsets: tuple[int, ...]
    nbytes: int
    load: int
    by: str
    least: bool = False

    @property
    def places(self) -> dict[str, int]:
        """Store -> its offset."""
        return {x.store: at for x, at in zip(self.lives, self.offsets, strict=True)}

    @property
    def stack(self) -> list[str]:
        """Stores that lie on each other, from one that ends where the arena does: why it is so
        large, as far as they reach down."""
        placed = list(zip(self.lives, self.offsets, strict=True))
        found: list[str] = []
        top, first, last = self.nbytes, 0, max((x.last for x in self.lives), default=0)
        while below := [
            (x, at)
            for x, at in placed
            if at + x.nbytes == top and x.first <= last and first <= x.last
        ]:
            x, top = below[0]
            first, last = x.first, x.last
            found.append(x.store)
        return found

    @property
    def apart(self) -> int:
        """The bytes of all stores, each in a buffer of its own."""
        return sum(x.nbytes for x in self.lives)

    @property
    def fragmentation(self) -> float:
        """The part of the arena that is lost between stores, even at the fullest step."""
        return 1 - self.load / self.nbytes if self.nbytes else 0.0

    def __str__(self) -> str:
        rows = [
            f"{at:>14,}  {x.store}  {x.nbytes:,} B, alive in steps {x.first}..{x.last}"
            for at, x in sorted(zip(self.offsets, self.lives, strict=True), key=lambda p: p[0])
        ]
        return "\n".join([*rows, self.total])

    @property
    def total(self) -> str:
        """The size, beside the stores' size apart, in words."""
        lost = f"{self.fragmentation:.1%} lost to fragmentation"
        proven = ", none is smaller" if self.least else ""
        return f"arena {self.nbytes:,} B by {self.by}{proven}, {lost}; apart {self.apart:,} B"

    def _repr_html_(self) -> str:
        rows = [
            {"offset": at, "store": x.store, "bytes": x.nbytes, "steps": f"{x.first}..{x.last}"}
            for at, x in zip(self.offsets, self.lives, strict=True)
        ]
        return table_html(rows) + f"<p>{self.total}</p>"
