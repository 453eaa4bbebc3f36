"""Patterns as index expressions: what `k[b, lo : t + 1]` is for each, and the softmax over it.

causal      k[b, 0 : t + 1]
window:W    k[b, max(t - W + 1, 0) : t + 1]
chunk:C     k[b, t // C * C : t + 1]
dilated:D   k[b, t % D : t + 1 : D]
sinks:K+W   k[b, 0 : min(K, lo)] and k[b, lo : t + 1], where lo = max(t - W + 1, 0)
linear      φ(k)[b, 0 : t + 1], which the compiler turns into a state of constant size
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import recurra as rc
from recurra.errors import RecurraError
from recurra.llm.patterns import Causal, Chunk, Dilated, Linear, Pattern, Prefix, Sinks, Window

if TYPE_CHECKING:
    from recurra.lang.tensor import RecurrentTensor as Tensor

MASKED = -1e30  # a score that takes no weight, and is finite


@dataclass(frozen=True)
class Past:
    """How positions are read: `dims` are those of k and v, of which the last is time.

    `place` is a position's place in its row, i32[]; with `ragged`, places below 0 are not there.
    """

    dims: tuple[Any, ...]
    place: Tensor
    ragged: bool

    def read(self, x: Tensor, span: slice) -> Tensor:
        """`x` at a range of time, as a leading axis."""
        last = self.dims[-1]
        return x[tuple(span if d is last else d for d in self.dims if str(d) in x.domain.dims)]

    def hide(self, scores: Tensor, span: slice) -> Tensor:
        """Scores [.., n] over a range, without those of places that are not there."""
        if not self.ragged:
            return scores
        return rc.where(self.read(self.place, span) >= 0, scores, MASKED)


def span(pattern: Pattern, t: Any) -> slice:
    """The range of positions that position t attends to, where that is one."""
    match pattern:
        case Causal() | Linear():
            return slice(0, t + 1)
        case Window(width):
            return slice(rc.max(t - (width - 1), 0), t + 1)
        case Chunk(size):
            return slice(t // size * size, t + 1)
        case Dilated(step):
            return slice(t % step, t + 1, step)
        case Sinks() | Prefix():
            raise RecurraError(f"{pattern} is no single range of the past")


@dataclass(frozen=True)
class Scores:
    """What is done with q·k before the softmax; `sinks` [KV, G] join it and give no value."""

    scale: float
    cap: float | None = None
    sinks: Tensor | None = None


def attend(pattern: Pattern, how: Scores, past: Past, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[KV, G, HD] of q [KV, G, HD] and k, v [KV, HD] over the dims of `past`.

    Raises RecurraError for `Prefix`, whose order the compiler does not find yet, and for `Linear`
    with sinks. `Linear` has no scores, so `how` does not touch it.
    """
    t = past.dims[-1]
    match pattern:
        case Sinks(count, width):
            first = rc.max(t - (width - 1), 0)  # of the window: sinks before it are read apart
            spans = [slice(0, rc.min(first, count)), slice(first, t + 1)]
            return _weighted(how, past, q, k, v, spans)
        case Linear():
            if how.sinks is not None:
                raise RecurraError(
                    "linear attention has no softmax that a sink logit could join",
                    facts="the model has learned sink logits",
                    hint="take another pattern",
                )
            return _linear(past, q, k, v)
        case Prefix():
            raise RecurraError(
                "a prefix that sees all of itself cannot be compiled yet",
                facts="a prompt's positions read later ones, and all of them are one loop over t",
                hint="take causal, or a window",
            )
        case _:
            return _weighted(how, past, q, k, v, [span(pattern, t)])


def _weighted(
    how: Scores, past: Past, q: Tensor, k: Tensor, v: Tensor, spans: list[slice]
) -> Tensor:
    """Softmax over one or more ranges, side by side."""
    parts: list[Tensor] = []
    for s in spans:
        scores = rc.einsum("kgd,nkd->kgn", q * how.scale, past.read(k, s))
        if how.cap is not None:
            scores = (scores / how.cap).tanh() * how.cap
        parts.append(past.hide(scores, s))
    weights = softmax(parts[0] if len(parts) == 1 else rc.concat(parts, axis=2), how.sinks)
    out: list[Tensor] = []
    at: Any = 0
    for s, part in zip(spans, parts, strict=True):
        mine = weights if len(parts) == 1 else weights.cut(at, at + part.shape[2], axis=2)
        out.append(rc.einsum("kgn,nkd->kgd", mine, past.read(v, s)))
        at += part.shape[2]
    return sum(out[1:], out[0])


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Over the last axis; a sink takes a part of the whole (GPT-OSS)."""
    if sinks is None:
        return scores.softmax(axis=2)
    most = rc.maximum(scores.max(axis=2), sinks)
    e = (scores - column(most)).exp()
    return e / column(e.sum(axis=2) + (sinks - most).exp())


def column(x: Tensor) -> Tensor:
    return x.reshape(*x.shape, 1)


def _linear(past: Past, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    features = phi(k)
    if past.ragged:
        features = rc.where(past.place >= 0, features, 0.0)
    s = span(Linear(), past.dims[-1])
    weights = rc.einsum("kgd,nkd->kgn", phi(q), past.read(features, s))
    whole = weights.sum(axis=2)
    if past.ragged:  # a place that is not there sees nothing: 0 / 0 would reach others as 0 · NaN
        whole = rc.where(past.place >= 0, whole, 1.0)
    return rc.einsum("kgn,nkd->kgd", weights, past.read(v, s)) / column(whole)


def phi(x: Tensor) -> Tensor:
    """elu(x) + 1, which is positive"""
    return rc.where(x > 0.0, x + 1.0, rc.minimum(x, 0.0).exp())
