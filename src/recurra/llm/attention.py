"""Attention patterns as index expressions `k[b, lo : t + 1]`, and the softmax over these.

causal      k[b, 0 : t + 1]
window:W    k[b, max(t - W + 1, 0) : t + 1]
chunk:C     k[b, t // C * C : t + 1]
dilated:D   k[b, t % D : t + 1 : D]
sinks:K+W   k[b, 0 : min(K, lo)] and k[b, lo : t + 1], where lo = max(t - W + 1, 0)
prefix:N    k[b, 0 : P] of a prompt of P places, masked from max(t + 1, N) on
linear      φ(k)[b, 0 : t + 1], which the compiler converts to a state of constant size

With ragged rows, which begin at different positions, patterns count places in the row. A chunk is
then read as the window that contains it, and the first places are a state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import recurra as rc
from recurra.errors import RecurraError
from recurra.llm.patterns import (
    Causal,
    Chunk,
    Dilated,
    LinearAttention,
    Pattern,
    Prefix,
    Sinks,
    SlidingWindow,
)

if TYPE_CHECKING:
    from recurra import Tensor

MASKED = -1e30  # a finite score without weight


@dataclass(frozen=True)
class CachedPast:
    """The past of a position.

    Args:
        dims: the dims of k and v; the last one is time.
        place: a position's place in its row, i32[].
        ragged: places below 0 are before the row.
        end: the bound of time if all tokens are known; all positions are then read, and masked.
    """

    dims: tuple[Any, ...]
    place: Tensor
    ragged: bool
    end: object = None

    @property
    def t(self) -> Any:
        return self.dims[-1]

    def read(self, tensor: Tensor, span: slice) -> Tensor:
        """`tensor` at a range of time, as a leading axis; bf16 is converted to f32."""
        own = (d for d in self.dims if str(d) in tensor.domain.dims)
        y = tensor[tuple(span if d is self.t else d for d in own)]
        return y.cast("f32") if y.dtype == "bf16" else y

    def places(self, span: slice) -> Tensor:
        """The places of a range of positions, i32 [n]."""
        return self.read(self.place, span)


@dataclass(frozen=True)
class KeyValues:
    """Keys and values [n, KV, HD] to attend to, except where `seen` [n] is false."""

    k: Tensor
    v: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class Scores:
    """The treatment of q·k before the softmax; `sinks` [KV, G] are scores without values."""

    scale: float
    cap: float | None = None
    sinks: Tensor | None = None


def attend(
    pattern: Pattern,
    scores: Scores,
    past: CachedPast,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """Attend with q [KV, G, HD] to k and v [KV, HD] over the dims of `past`; returns [KV, G, HD].

    `LinearAttention` has no scores; raises RecurraError if there are sinks.
    """
    if not isinstance(pattern, LinearAttention):
        return _softmax_attention(scores, queries, list(parts(pattern, past, keys, values)))
    if scores.sinks is not None:
        raise RecurraError(
            "linear attention has no softmax that a sink logit could join",
            facts="the model has learned sink logits",
            hint="take another pattern",
        )
    return _linear(past, queries, keys, values)


def parts(pattern: Pattern, past: CachedPast, keys: Tensor, values: Tensor) -> Iterator[KeyValues]:
    """Yield the keys and values that position t attends to, in parts."""
    if past.end is not None:
        every = slice(0, past.end)
        seen = mask(pattern, past, past.places(every))
        yield KeyValues(past.read(keys, every), past.read(values, every), seen)
        return
    for s in spans(pattern, past):
        seen = None
        if past.ragged:
            places = past.places(s)
            seen = places >= 0
            if isinstance(pattern, Chunk):
                seen = seen & (places >= past.place - past.place % pattern.size)
        yield KeyValues(past.read(keys, s), past.read(values, s), seen)
    if isinstance(pattern, Sinks) and past.ragged:
        first = rc.constant(np.arange(pattern.count, dtype=np.int32))
        outside = first <= past.place - pattern.width
        k, v = (first_places(past, x, pattern.count) for x in (keys, values))
        yield KeyValues(k, v, outside)


def mask(pattern: Pattern, past: CachedPast, places: Tensor) -> Tensor:
    """The mask of the places [n] that a position attends to, as data."""
    own = past.place
    before = (places >= 0) & (places <= own)
    match pattern:
        case Causal() | LinearAttention():
            return before
        case SlidingWindow(width):
            return before & (places > own - width)
        case Chunk(size):
            return before & (places >= own - own % size)
        case Dilated(step):
            return before & ((own - places) % step == 0)
        case Sinks(count, width):
            return before & ((places < count) | (places > own - width))
        case Prefix(length):
            return (places >= 0) & ((places <= own) | (places < length))


def spans(pattern: Pattern, past: CachedPast) -> list[slice]:
    """The disjoint ranges of positions that position t attends to.

    With ragged rows they are supersets, without the sinks. Raises RecurraError for `Prefix`, which
    is no range of the past.
    """
    t = past.t
    match pattern:
        case Causal() | LinearAttention():
            return [slice(0, t + 1)]
        case SlidingWindow(width):
            return [slice(rc.max(t - (width - 1), 0), t + 1)]
        case Chunk(size) if past.ragged:
            return [slice(rc.max(t - (size - 1), 0), t + 1)]
        case Chunk(size):
            return [slice(t // size * size, t + 1)]
        case Dilated(step):
            return [slice(t % step, t + 1, step)]
        case Sinks(count, width):
            lo = rc.max(t - (width - 1), 0)  # sinks before the window are another range
            window = slice(lo, t + 1)
            return [window] if past.ragged else [slice(0, rc.min(lo, count)), window]
        case Prefix():
            raise RecurraError(
                "a prefix that sees all of itself is more than a past",
                facts="its positions read later ones, which must all be given",
                hint="let the positions of the prompt have an end",
            )


def first_places(past: CachedPast, tensor: Tensor, count: int) -> Tensor:
    """`tensor` at the first places of each row, [count, ..]; zero for places still to come."""
    here = rc.constant(np.arange(count, dtype=np.int32)) == past.place
    shape = (count, *tensor.shape)
    type_ = rc.Type(tensor.dtype, shape)
    out = rc.like(type_, domain=past.dims, name=f"first_{tensor.name}")
    out[(*past.dims[:-1], 0)] = rc.constant(0.0).cast(tensor.dtype).broadcast_to(shape)
    now = rc.where(here.reshape(count, *(1 for _ in tensor.shape)), tensor, out)
    out[(*past.dims[:-1], past.t + 1)] = now
    return now.cast("f32") if tensor.dtype == "bf16" else now


def _softmax_attention(scores: Scores, queries: Tensor, parts: Sequence[KeyValues]) -> Tensor:
    """The values of all parts, weighted by the softmax of their scores."""
    by_part: list[Tensor] = []
    for part in parts:
        s = rc.einsum("kgd,nkd->kgn", queries * scores.scale, part.k)
        if scores.cap is not None:
            s = (s / scores.cap).tanh() * scores.cap
        by_part.append(s if part.mask is None else rc.where(part.mask, s, MASKED))
    single = len(by_part) == 1
    weights = softmax(by_part[0] if single else rc.concat(by_part, axis=2), scores.sinks)
    out: list[Tensor] = []
    at: Any = 0
    for part, s in zip(parts, by_part, strict=True):
        own = weights if single else weights.cut(at, at + s.shape[2], axis=2)
        out.append(rc.einsum("kgn,nkd->kgd", own, part.v))
        at += s.shape[2]
    return sum(out[1:], out[0])


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax over the last axis, with a sink in its sum (GPT-OSS)."""
    if sinks is None:
        return scores.softmax(axis=2)
    most = rc.maximum(scores.max(axis=2), sinks)
    e = (scores - column(most)).exp()
    return e / column(e.sum(axis=2) + (sinks - most).exp())


def column(tensor: Tensor) -> Tensor:
    return tensor.reshape(*tensor.shape, 1)


def _linear(past: CachedPast, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    features = phi(keys.cast("f32") if keys.dtype == "bf16" else keys)
    if past.ragged:
        features = rc.where(past.place >= 0, features, 0.0)
    (s,) = spans(LinearAttention(), past) if past.end is None else [slice(0, past.end)]
    weights = rc.einsum("kgd,nkd->kgn", phi(queries), past.read(features, s))
    if past.end is not None:
        weights = rc.where(mask(LinearAttention(), past, past.places(s)), weights, 0.0)
    total = weights.sum(axis=2)
    if past.ragged:  # places before the row see nothing: 0 / 0 would reach others as 0 · NaN
        total = rc.where(past.place >= 0, total, 1.0)
    return rc.einsum("kgn,nkd->kgd", weights, past.read(values, s)) / column(total)


def phi(tensor: Tensor) -> Tensor:
    """elu(x) + 1, which is positive."""
    return rc.where(tensor > 0.0, tensor + 1.0, rc.minimum(tensor, 0.0).exp())
