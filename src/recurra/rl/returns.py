"""What several algorithms do with returns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from recurra.ir.expr import mul
from recurra.lang.dims import Index, wrap
from recurra.lang.tensor import RecurrentTensor


def total(x: RecurrentTensor, over: Sequence[Index]) -> RecurrentTensor:
    """Σ x over dims: the sum of x[0:B, i, 0:T] for over=(b, t)."""
    names = {str(d) for d in over}
    index = tuple(slice(None) if r.dim in names else Index(r.sym) for r in x.domain)
    return x[index].sum(axis=tuple(range(len(names & set(x.domain.dims)))))


def normalise(
    x: RecurrentTensor,
    over: Sequence[Index],
    where: RecurrentTensor | None = None,
    eps: float = 1e-8,
) -> RecurrentTensor:
    """(x - mean) / (std + eps), the moments over dims and, with `where`, over live points only."""
    w: Any = 1.0 + x * 0.0 if where is None else where.cast(x.dtype)
    n = total(w, over)
    mean = total(w * x, over) / n
    std = (total(w * (x - mean).square(), over) / n).sqrt()
    return (x - mean) / (std + eps)


def rows(x: RecurrentTensor, k: RecurrentTensor, over: Sequence[Index]) -> RecurrentTensor:
    """x at point number k of the dims `over`: for over=(b, t) at b = k // T, t = k % T.

    With k = rc.permutation(B * T, ..) these are the samples of a minibatch.
    """
    names = {str(d) for d in over}
    ranges = [r for r in x.domain if r.dim in names]
    index = tuple(slice(None) if r in ranges else Index(r.sym) for r in x.domain)
    count = reduce(mul, (r.hi - r.lo for r in ranges))
    every = x[index]
    return every.reshape(wrap(count), *every.shape[len(ranges) :]).take(k)
