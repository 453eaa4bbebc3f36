"""Attention by `scaled_dot_product_attention`, on views of stores cut to their valid length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import torch
import torch.nn.functional as F

from recurra.backends.torch.array_namespace import Tensor
from recurra.ops.attention import FAR, Attention, Roles


def attend(
    scores: str,
    values: str,
    axis: int,
    cap: float,
    mask: str,
    length: int,
    queries: Tensor,
    keys: Tensor,
    value_rows: Tensor,
    *masks: Tensor,
) -> Tensor:
    """Compute the op of these labels on the first `length` positions of the range.

    Rows of the same keys, such as the heads of a group, are rows of one query matrix: no key is
    read twice. A cap, which the kernel does not support, takes two products and a softmax.
    """
    r = roles(scores, values, axis, mask)
    keys = keys.narrow(r.k.index(r.n), 0, length)
    value_rows = value_rows.narrow(r.v.index(r.n), 0, length)
    q4, k4 = _as_4d(queries, r.q, r.batch, r.rows, r.d), _as_4d(keys, r.k, r.batch, r.n, r.d)
    v4 = _as_4d(value_rows, r.v, r.batch, r.n, r.e)
    bias = None
    for x in masks:
        x = x.narrow(r.seen.index(r.n), 0, length) if r.n in r.seen else x
        bias = _mask(x, r, queries.dtype)
    if cap:
        s = torch.tanh(q4 @ k4.transpose(-1, -2) / cap) * cap
        y = torch.softmax(s if bias is None else s + bias, -1) @ v4
    else:
        y = F.scaled_dot_product_attention(q4, k4, v4, attn_mask=bias, scale=1.0)
    return _restore_axes(y, queries, r)


@cache
def roles(scores: str, values: str, axis: int, mask: str) -> Roles:
    return Attention(scores=scores, values=values, axis=axis, mask=mask).roles()


def _as_4d(tensor: Tensor, mine: str, batch: str, rows: str, last: str) -> Tensor:
    """Permute and reshape to the four axes [.., .., rows, last] of the kernel."""
    tensor = tensor.permute([mine.index(c) for c in (*batch, *rows, *last)])
    return tensor.reshape(
        *_two_axes(tensor.shape[: len(batch)]),
        prod(tensor.shape[len(batch) : -1]),
        tensor.shape[-1],
    )


def _two_axes(batch: Sequence[int]) -> tuple[int, int]:
    """Merge the sizes of a batch into those of two axes."""
    return prod(batch[:-1]), prod(batch[-1:])


def _mask(tensor: Tensor, roles: Roles, dtype: torch.dtype) -> Tensor:
    """The bias of scores [.., rows, n]: 0, or a number so low that masked keys have no weight."""
    axes = (*roles.batch, *roles.rows, roles.n)
    size = dict(zip(roles.seen, tensor.shape, strict=True))
    tensor = tensor.permute([roles.seen.index(c) for c in axes if c in size])
    shape = [size.get(c, 1) for c in axes]
    shown = torch.zeros((), dtype=dtype, device=tensor.device)
    bias = torch.where(tensor.reshape(shape), shown, torch.full_like(shown, FAR))
    lead = len(roles.batch)
    return bias.reshape(*_two_axes(shape[:lead]), prod(shape[lead:-1]), shape[-1])


def _restore_axes(result: Tensor, queries: Tensor, roles: Roles) -> Tensor:
    """Permute [.., rows, e] to the axes of the result."""
    size = dict(zip(roles.q, queries.shape, strict=True))
    result = result.reshape([*(size[c] for c in (*roles.batch, *roles.rows)), result.shape[-1]])
    have = (*roles.batch, *roles.rows, roles.e)
    return result.permute([have.index(c) for c in roles.y])
