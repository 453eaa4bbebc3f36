"""The primitives: adding one means adding one class in one of these files, nothing elsewhere."""

from recurra.ops import (
    collective,
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
    "collective",
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
