"""The cost of attention: as a call of a backend's kernel, and as equations over tiles."""

from __future__ import annotations

from dataclasses import dataclass

from recurra.cost.thresholds import EQUATIONS_PER_ATTENTION_TILE


@dataclass(frozen=True)
class AttentionKernel:
    """A backend's kernel of attention, and the equations that it replaces; nanoseconds.

    If `exact`, the kernel reads only the points that a range has, else as many as it may have.
    """

    name: str
    call: float  # of a call, with its preparation
    line: float  # of an equation, whatever its size
    byte: float  # of keys and values, by the kernel
    tiled: float  # of keys and values, by equations over tiles
    exact: bool = True

    def alone(self, points: float, most: float, nbytes: float) -> float:
        """The cost of a call over `points` of a range of at most `most`, of `nbytes` each."""
        return self.call + self.byte * nbytes * (points if self.exact else most)

    def in_tiles(self, points: float, tile: int, nbytes: float) -> float:
        """The cost of equations over tiles; a range that is read whole is one tile."""
        tiles = points / tile + 0.5 if points > tile else 1.0
        return tiles * (self.line * EQUATIONS_PER_ATTENTION_TILE + self.tiled * nbytes * tile)


XLA_ATTENTION = AttentionKernel(
    "dot_product_attention", call=20e3, line=50.0, byte=0.2, tiled=0.1, exact=False
)
"""JAX's kernel beside equations that XLA fuses; the measurement is not on record."""
TORCH_ATTENTION = AttentionKernel(
    "scaled_dot_product_attention", call=30e3, line=5e3, byte=0.2, tiled=0.3
)
"""PyTorch's kernel beside equations, each of which is a call; the measurement is not on record."""
