"""The primitives: adding one means adding one class in one of these files, nothing elsewhere."""

from recurra.ops import (
    contraction,
    control,
    elementwise,
    indexing,
    movement,
    permutation,
    reduction,
    scan,
    softmax,
    source,
    special,
    window,
)

__all__ = [
    "contraction",
    "control",
    "elementwise",
    "indexing",
    "movement",
    "permutation",
    "reduction",
    "scan",
    "softmax",
    "source",
    "special",
    "window",
]
