"""The primitives. Adding one means adding one class in one of these files, and nothing elsewhere."""

from recurra.ops import (
    contraction,
    control,
    elementwise,
    indexing,
    movement,
    reduction,
    scan,
    softmax,
    source,
)

__all__ = [
    "contraction",
    "control",
    "elementwise",
    "indexing",
    "movement",
    "reduction",
    "scan",
    "softmax",
    "source",
]
