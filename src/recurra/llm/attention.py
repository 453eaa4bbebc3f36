"""Patterns as index expressions: what `k[b, lo : t + 1]` is for each, and the softmax over it.

causal      k[b, 0 : t + 1]
window:W    k[b, max(t - W + 1, 0) : t + 1]
chunk:C     k[b, t // C * C : t + 1]
dilated:D   k[b, t % D : t + 1 : D]
sinks:K+W   k[b, 0 : min(K, lo)] and k[b, lo : t + 1], where lo = max(t - W + 1, 0)
prefix:N    k[b, 0 : P] of a prompt of P places, masked from max(t + 1, N) on
linear      φ(k)[b, 0 : t + 1], which the compiler turns into a state of constant size

Rows of their own length begin at places of their own: what a pattern counts from the beginning is
then said of places. A chunk is read as the window that it lies in, the first places are a state.
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

MASKED = -1e30  # a score that takes no weight, and is finite


@dataclass(frozen=True)
class Past:
    """The past: `dims` are those of k and v, of which the last is time.

    `place` is a position's place in its row, i32[]; with `ragged`, places below 0 are not there.
    Where time ends is named of positions that are all given: all of them are read, and masked.
    """

    dims: tuple[Any, ...]
    place: Tensor
    ragged: bool
    end: object = None

    @property
    def t(self) -> Any:
        return self.dims[-1]

    def read(self, tensor: Tensor, span: slice) -> Tensor:
        """`tensor` at a range of time, as a leading axis; kept in 16 bits, reckoned with in 32."""
        last = self.t
        y = tensor[
            tuple(span if d is last else d for d in self.dims if str(d) in tensor.domain.dims)
        ]
        return y.cast("f32") if y.dtype == "bf16" else y

    def places(self, span: slice) -> Tensor:
        """The places of a range of positions, i32 [n]."""
        return self.read(self.place, span)


@dataclass(frozen=True)
class KeyValues:
    """Keys and values [n, KV, HD] that are attended to, but for those that are not `seen` [n]."""

    k: Tensor
    v: Tensor
    seen: Tensor | None = None


@dataclass(frozen=True)
class Scores:
    """The treatment of q·k before the softmax; `sinks` [KV, G] join it and give no value."""

    scale: float
    cap: float | None = None
    sinks: Tensor | None = None


def attend(
    pattern: Pattern, how: Scores, past: Past, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """[KV, G, HD] of q [KV, G, HD] and k, v [KV, HD] over the dims of `past`.

    Raises RecurraError for `LinearAttention` with sinks. That has no scores, so `how` does not
    touch it.
    """
    if not isinstance(pattern, LinearAttention):
        return _weighted(how, queries, list(parts(pattern, past, keys, values)))
    if how.sinks is not None:
        raise RecurraError(
            "linear attention has no softmax that a sink logit could join",
            facts="the model has learned sink logits",
            hint="take another pattern",
        )
    return _linear(past, queries, keys, values)


def parts(pattern: Pattern, past: Past, keys: Tensor, values: Tensor) -> Iterator[KeyValues]:
    """Yield the keys and values that position t attends to, side by side."""
    if past.end is not None:
        every = slice(0, past.end)
        seen = mask(pattern, past, past.places(every))
        yield KeyValues(past.read(keys, every), past.read(values, every), seen)
        return
    for s in spans(pattern, past):
        seen = None
        if past.ragged:
            there = past.places(s)
            seen = there >= 0
            if isinstance(pattern, Chunk):
                seen = seen & (there >= past.place - past.place % pattern.size)
        yield KeyValues(past.read(keys, s), past.read(values, s), seen)
    if isinstance(pattern, Sinks) and past.ragged:
        outside = rc.constant(np.arange(pattern.count, dtype=np.int32)) <= (
            past.place - pattern.width
        )
        yield KeyValues(
            first(past, keys, pattern.count), first(past, values, pattern.count), outside
        )


def mask(pattern: Pattern, past: Past, there: Tensor) -> Tensor:
    """Mark the places `there` [n] that a place attends to, as data."""
    here = past.place
    before = (there >= 0) & (there <= here)
    match pattern:
        case Causal() | LinearAttention():
            return before
        case SlidingWindow(width):
            return before & (there > here - width)
        case Chunk(size):
            return before & (there >= here - here % size)
        case Dilated(step):
            return before & ((here - there) % step == 0)
        case Sinks(count, width):
            return before & ((there < count) | (there > here - width))
        case Prefix(length):
            return (there >= 0) & ((there <= here) | (there < length))


def spans(pattern: Pattern, past: Past) -> list[slice]:
    """The ranges of positions that position t attends to, none of them twice.

    Rows of their own length attend to no more than these; sinks come from elsewhere. Raises
    RecurraError for `Prefix`: no range of the past has it.
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
            lo = rc.max(t - (width - 1), 0)  # sinks before the window are read apart
            window = slice(lo, t + 1)
            return [window] if past.ragged else [slice(0, rc.min(lo, count)), window]
        case Prefix():
            raise RecurraError(
                "a prefix that sees all of itself is more than a past",
                facts="its positions read later ones, which must all be given",
                hint="let the positions of the prompt have an end",
            )


def first(past: Past, tensor: Tensor, count: int) -> Tensor:
    """`tensor` at the first places of each row, [count, ..]: zero where none has been yet."""
    here = rc.constant(np.arange(count, dtype=np.int32)) == past.place
    out = rc.like(
        rc.Type(tensor.dtype, (count, *tensor.shape)), domain=past.dims, name=f"first_{tensor.name}"
    )
    out[(*past.dims[:-1], 0)] = (
        rc.constant(0.0).cast(tensor.dtype).broadcast_to((count, *tensor.shape))
    )
    now = rc.where(here.reshape(count, *(1 for _ in tensor.shape)), tensor, out)
    out[(*past.dims[:-1], past.t + 1)] = now
    return now.cast("f32") if tensor.dtype == "bf16" else now


def _weighted(how: Scores, queries: Tensor, parts: Sequence[KeyValues]) -> Tensor:
    """Softmax over what is attended to."""
    found: list[Tensor] = []
    for part in parts:
        scores = rc.einsum("kgd,nkd->kgn", queries * how.scale, part.k)
        if how.cap is not None:
            scores = (scores / how.cap).tanh() * how.cap
        found.append(scores if part.seen is None else rc.where(part.seen, scores, MASKED))
    weights = softmax(found[0] if len(found) == 1 else rc.concat(found, axis=2), how.sinks)
    out: list[Tensor] = []
    at: Any = 0
    for part, scores in zip(parts, found, strict=True):
        mine = weights if len(found) == 1 else weights.cut(at, at + scores.shape[2], axis=2)
        out.append(rc.einsum("kgn,nkd->kgd", mine, part.v))
        at += scores.shape[2]
    return sum(out[1:], out[0])


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Over the last axis; a sink takes a part of the whole (GPT-OSS)."""
    if sinks is None:
        return scores.softmax(axis=2)
    most = rc.maximum(scores.max(axis=2), sinks)
    e = (scores - column(most)).exp()
    return e / column(e.sum(axis=2) + (sinks - most).exp())


def column(tensor: Tensor) -> Tensor:
    return tensor.reshape(*tensor.shape, 1)


def _linear(past: Past, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    features = phi(keys.cast("f32") if keys.dtype == "bf16" else keys)
    if past.ragged:
        features = rc.where(past.place >= 0, features, 0.0)
    (s,) = spans(LinearAttention(), past) if past.end is None else [slice(0, past.end)]
    weights = rc.einsum("kgd,nkd->kgn", phi(queries), past.read(features, s))
    if past.end is not None:
        weights = rc.where(mask(LinearAttention(), past, past.places(s)), weights, 0.0)
    whole = weights.sum(axis=2)
    if past.ragged:  # a place that is not there sees nothing: 0 / 0 would reach others as 0 · NaN
        whole = rc.where(past.place >= 0, whole, 1.0)
    return rc.einsum("kgn,nkd->kgd", weights, past.read(values, s)) / column(whole)


def phi(tensor: Tensor) -> Tensor:
    """elu(x) + 1, which is positive"""
    return rc.where(tensor > 0.0, tensor + 1.0, rc.minimum(tensor, 0.0).exp())
