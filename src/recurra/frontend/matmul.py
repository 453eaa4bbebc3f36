"""Matrix products with broadcast batch axes, as one contraction."""

from __future__ import annotations

from recurra.errors import ShapeError
from recurra.frontend.tensor_base import Operand, Tensor
from recurra.frontend.tensor_conversion import (
    always_equal,
    points_for_elements,
    promote,
    squeezed,
    with_size,
)
from recurra.ir.expr import Expr
from recurra.ir.op import LETTERS
from recurra.ir.types import accumulator
from recurra.ops.contraction import Einsum

_ROW, _INNER, _COLUMN = LETTERS[-3:]


def matmul(kind: type[Tensor], a: object, b: object) -> Tensor:
    """The product [.., m, k] @ [.., k, n] → [.., m, n]; a vector is a row or a column."""
    a, b = (x.cast(accumulator(x.dtype)) for x in promote(kind, a, b))
    if not a.shape or not b.shape:
        raise ShapeError.at_user_line("@ needs axes", facts=f"{a!r} @ {b!r}", hint="use *")
    have, want = a.shape[-1], b.shape[max(len(b.shape) - 2, 0)]
    if not always_equal(have, want):
        raise ShapeError.at_user_line(
            f"{a.type} @ {b.type}: sizes {have} and {want} do not match",
            facts="the last axis on the left meets the last but one (or only) on the right",
            hint=points_for_elements((a, b))
            or f"transpose or reshape one of them; a layer's inputs are to be {have}",
        )
    b = with_size(b, max(len(b.shape) - 2, 0), have)
    row = _ROW if len(a.shape) > 1 else ""
    column = _COLUMN if len(b.shape) > 1 else ""
    batches = _batch_sizes(a, b)
    a, left = _without_ones(a, a.shape[:-2], batches)
    b, right = _without_ones(b, b.shape[:-2], batches)
    both = LETTERS[: len(batches)] + row + column
    labels = f"{left}{row}{_INNER},{right}{_INNER}{column}->{both}"
    return a.apply(Einsum(labels=labels), a, b)


def _batch_sizes(left: Operand, right: Operand) -> list[Expr | int]:
    """The broadcast batch shape; raises ShapeError if the operands' batches do not match."""
    first, second = list(left.shape[:-2]), list(right.shape[:-2])
    rank = max(len(first), len(second))
    first, second = [1] * (rank - len(first)) + first, [1] * (rank - len(second)) + second
    for m, n in zip(first, second, strict=True):
        if m != n and 1 not in (m, n):
            raise ShapeError.at_user_line(
                f"{left.type} @ {right.type}: batches of {m} and {n} do not match",
                facts="axes before the last two meet one by one from the right, as in np.matmul",
                hint="expand or transpose one of them; rc.einsum contracts any axes",
            )
    return [n if m == 1 else m for m, n in zip(first, second, strict=True)]


def _without_ones(
    tensor: Tensor, own: tuple[Expr | int, ...], batches: list[Expr | int]
) -> tuple[Tensor, str]:
    """Drop batch axes of size 1 that broadcast; return the tensor and labels of the others."""
    lead = len(batches) - len(own)
    ones = tuple(k for k, n in enumerate(own) if n == 1 and batches[lead + k] != 1)
    labels = "".join(LETTERS[lead + k] for k in range(len(own)) if k not in ones)
    return squeezed(tensor, ones), labels
