"""Contractions that are matrix products, called as such: torch.einsum takes 10 µs to find out.

torch.functional.einsum('XY,ZY->XZ', x, w)      →      torch.matmul(x, w.T)
"""

from __future__ import annotations

import re

EINSUM = re.compile(r"torch\.functional\.einsum\('(\w+),(\w+)->(\w*)', (\w+), (\w+)\)")


def with_products(source: str) -> str:
    """Replace contractions of two matrices, or vectors, in the source of a region by products."""
    return EINSUM.sub(lambda found: product(*found.groups()) or found[0], source)


def product(first: str, second: str, out: str, left: str, right: str) -> str | None:
    """A contraction as a matrix product; None if it is none."""
    if max(len(first), len(second)) > 2 or len({*first}) + len({*second}) != len(first + second):
        return None
    summed = {*first} & {*second}
    if {*out} != {*first} ^ {*second} or len(out) != len(first + second) - 2 * len(summed):
        return None
    if not summed and len(out) == 2 and len(first) == 1:
        first_row = out[0] == first
        return f"torch.outer({left}, {right})" if first_row else f"torch.outer({right}, {left})"
    if len(summed) != 1:
        return None
    (k,) = summed
    rows, columns = first.replace(k, ""), second.replace(k, "")
    if out != rows + columns:  # the transpose: the operands change places
        first, second, left, right, rows, columns = second, first, right, left, columns, rows
    return f"torch.matmul({aligned(left, first, rows + k)}, {aligned(right, second, k + columns)})"


def aligned(matrix: str, labels: str, wanted: str) -> str:
    """A matrix, or its transpose if its labels are in the other order."""
    return matrix if labels == wanted else f"{matrix}.T"
