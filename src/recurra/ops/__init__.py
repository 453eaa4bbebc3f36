"""The primitives: adding one means adding one class in one of these files, nothing elsewhere."""

from recurra.ops import (
    attention,
    bitwise,
    collective,
    contraction,
    control,
    elementwise,
    indexing,
    movement,
    permutation,
    reduction,
    samples,
    scan,
    softmax,
    source,
    special,
    window,
)

__all__ = [
    "attention",
    "bitwise",
    "collective",
    "contraction",
    "control",
    "elementwise",
    "indexing",
    "movement",
    "permutation",
    "reduction",
    "samples",
    "scan",
    "softmax",
    "source",
    "special",
    "window",
]
