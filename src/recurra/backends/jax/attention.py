"""Attention by `jax.nn.dot_product_attention`, over the longest possible range, masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from recurra.ir.expr import evaluate
from recurra.ops.attention import FAR, Attention


def masked_attention(
    op: Attention, env: Mapping[str, Any], queries: Any, keys: Any, values: Any, *masks: Any
) -> Any:
    """Compute the op in one call; with a cap, or values of another width than keys, by equations.

    Rows of the same keys, such as the heads of a group, are positions of one query.
    """
    r = op.roles()
    if op.cap or values.shape[r.v.index(r.e)] != keys.shape[r.k.index(r.d)]:
        return op.run(jnp, env, queries, keys, values, *masks)
    size = dict(zip(r.q, queries.shape, strict=True)) | dict(zip(r.k, keys.shape, strict=True))
    first, last = r.batch[:-1], r.batch[-1:]

    def four(array: Any, mine: str, along: str, end: str) -> Any:
        """[batch, along, heads, end]"""
        array = turned(array, mine, (*first, *along, *last, *end))
        lead, own = len(first), len(first) + len(along)
        groups = (array.shape[:lead], array.shape[lead:own], array.shape[own:-1])
        return array.reshape(*map(prod, groups), array.shape[-1])

    bias = None
    if op.length is not None:
        there = jnp.arange(size[r.n]) < evaluate(op.length, env, jnp)
        bias = jnp.where(there, 0.0, -jnp.inf)[None, None, None, :]
    for x in masks:
        axes = (*first, *last, *r.rows, r.n)
        x = turned(x, r.seen, [c for c in axes if c in r.seen])
        x = x.reshape([size[c] if c in r.seen else 1 for c in axes])
        whole = jnp.broadcast_to(x, [size[c] for c in axes])
        shape = (prod(size[c] for c in first), prod(size[c] for c in last))
        hidden = jnp.where(whole.reshape(*shape, -1, size[r.n]), 0.0, FAR)
        bias = hidden if bias is None else bias + hidden
    q, k = four(queries, r.q, r.rows, r.d), four(keys, r.k, r.n, r.d)
    v = four(values, r.v, r.n, r.e)
    more = None if bias is None else bias.astype(queries.dtype)
    y = jax.nn.dot_product_attention(q, k, v, bias=more, scale=1.0)
    have = (*first, *r.rows, *last, *r.e)
    sizes = {**size, r.e: values.shape[r.v.index(r.e)]}
    return turned(y.reshape([sizes[c] for c in have]), have, r.y)


def turned(array: Any, have: Sequence[str], want: Sequence[str]) -> Any:
    """Permute an array from the axis labels `have` to the order `want`."""
    return jnp.permute_dims(array, tuple(have.index(c) for c in want))
