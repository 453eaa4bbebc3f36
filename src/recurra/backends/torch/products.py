"""Contractions that are products of matrices, called as such: torch.einsum takes 10 µs to see it.

torch.functional.einsum('XY,ZY->XZ', x, w)      →      torch.matmul(x, w.T)
"""

from __future__ import annotations

import re

EINSUM = re.compile(r"torch\.functional\.einsum\('(\w+),(\w+)->(\w*)', (\w+), (\w+)\)")


def with_products(source: str) -> str:
    """The source of a region with its contractions of two matrices, or vectors, as products."""
    return EINSUM.sub(lambda found: product(*found.groups()) or found[0], source)


def product(first: str, second: str, out: str, left: str, right: str) -> str | None:
    """The product that a contraction is; None if it is another one."""
    if max(len(first), len(second)) > 2 or len({*first}) + len({*second}) != len(first + second):
        return None
    summed = {*first} & {*second}
    if {*out} != {*first} ^ {*second} or len(out) != len(first + second) - 2 * len(summed):
        return None
    if not summed:
        return outer(first, out, left, right)
    if len(summed) > 1:
        return None
    (k,) = summed
    rows, columns = first.replace(k, ""), second.replace(k, "")
    if out == rows + columns:
        return f"torch.matmul({laid(left, first, rows + k)}, {laid(right, second, k + columns)})"
    return f"torch.matmul({laid(right, second, columns + k)}, {laid(left, first, k + rows)})"


def outer(first: str, out: str, left: str, right: str) -> str | None:
    """All products of the numbers of two vectors."""
    if len(out) != 2 or len(first) != 1:
        return None
    return f"torch.outer({left}, {right})" if out[0] == first else f"torch.outer({right}, {left})"


def laid(left: str, labels: str, wanted: str) -> str:
    """A matrix, or its transpose."""
    return left if labels == wanted else f"{left}.T"
