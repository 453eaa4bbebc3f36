"""Gradient clipping, between backward() and step()."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from recurra.frontend.dims import Index
from recurra.frontend.functions import where
from recurra.frontend.nn.modules import Parameter
from recurra.frontend.optim.optimizer import gradient, parameters
from recurra.frontend.tensor import RecurrentTensor


def clip_grad_value(params: Sequence[Parameter], limit: float | Index | RecurrentTensor) -> None:
    """Clip every element of the gradients to [-limit, limit]."""
    for p in parameters(params):
        g = gradient(p)
        p.grad = g.clip(-limit, limit).cast(g.dtype)


def clip_grad_norm(
    params: Sequence[Parameter], max_norm: float | Index | RecurrentTensor
) -> RecurrentTensor:
    """Scale the gradients of all `params` together to a norm of at most `max_norm`.

    Return the norm [] before scaling, for `rc.log`.
    """
    all_of_them = parameters(params)
    squares = [gradient(p).square().sum() for p in all_of_them]
    norm = reduce(add, squares).sqrt()
    for p in all_of_them:
        g = gradient(p)
        p.grad = where(norm < max_norm, g, g / norm * max_norm).cast(g.dtype)
    return norm
