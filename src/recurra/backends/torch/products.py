"""Contractions that are products of matrices, called as such: torch.einsum takes 10 µs to see it.

torch.functional.einsum('XY,ZY->XZ', x, w)      →      torch.matmul(x, w.T)
"""

from __future__ import annotations

import re

EINSUM = re.compile(r"torch\.functional\.einsum\('(\w+),(\w+)->(\w*)', (\w+), (\w+)\)")


def with_products(source: str) -> str:
    """The source of a region with its contractions of two matrices, or vectors, as products."""
    return EINSUM.sub(lambda found: product(*found.groups()) or found[0], source)


def product(first: str, second: str, out: str, x: str, y: str) -> str | None:
    """The product that a contraction of x and y is; None: it is another one."""
    if max(len(first), len(second)) > 2 or len({*first}) + len({*second}) != len(first + second):
        return None
    summed = {*first} & {*second}
    if {*out} != {*first} ^ {*second} or len(out) != len(first + second) - 2 * len(summed):
        return None
    if not summed:
        return outer(first, out, x, y)
    if len(summed) > 1:
        return None
    (k,) = summed
    rows, columns = first.replace(k, ""), second.replace(k, "")
    if out == rows + columns:
        return f"torch.matmul({laid(x, first, rows + k)}, {laid(y, second, k + columns)})"
    return f"torch.matmul({laid(y, second, columns + k)}, {laid(x, first, k + rows)})"


def outer(first: str, out: str, x: str, y: str) -> str | None:
    """All products of the numbers of two vectors."""
    if len(out) != 2 or len(first) != 1:
        return None
    return f"torch.outer({x}, {y})" if out[0] == first else f"torch.outer({y}, {x})"


def laid(x: str, labels: str, wanted: str) -> str:
    """A matrix, or its transpose."""
    return x if labels == wanted else f"{x}.T"
