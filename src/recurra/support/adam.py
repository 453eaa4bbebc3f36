"""The formulas of Adam (Kingma and Ba, 2015), on tensors of any library.

`xp` is the library's namespace, with `square` and `sqrt`.
"""

from __future__ import annotations

from typing import Any

BETAS = (0.9, 0.999)
EPS = 1e-8


def moments(
    xp: Any, gradient: Any, mean: Any, square: Any, betas: tuple[float, float] = BETAS
) -> tuple[Any, Any]:
    """Return the running means of the gradient and of its square after one more gradient."""
    b1, b2 = betas
    return mean * b1 + gradient * (1 - b1), square * b2 + xp.square(gradient) * (1 - b2)


def direction(
    xp: Any,
    mean: Any,
    square: Any,
    count: Any,
    betas: tuple[float, float] = BETAS,
    eps: float = EPS,
) -> Any:
    """Return the mean over the root of the mean square of `count` gradients, both unbiased."""
    b1, b2 = betas
    unbiased = mean / (1.0 - b1**count)
    return unbiased / (xp.sqrt(square / (1.0 - b2**count)) + eps)
