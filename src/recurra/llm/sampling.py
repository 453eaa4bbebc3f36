"""Sampling of the next token: greedy, or drawn within temperature, top-k, top-p and min-p.

Settings are inputs of a program, with a value for each row; the program has only those inputs that
some row uses. A draw is a counter-based function of the run's seed, the row and the place in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite, nan
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

import recurra as rc
from recurra.errors import RecurraError

if TYPE_CHECKING:
    from recurra import Tensor

GONE = -1e30  # a logit that is never drawn
LARGEST = 3e38  # a float of 32 bits
FILTERS = ("top_k", "top_p", "min_p")


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling, applied in this order, as in transformers; greedy by default."""

    repetition_penalty: float = 1.0  # for logits of earlier tokens: / if > 0, · if < 0
    temperature: float = 0.0  # 0: the most likely token
    top_k: int = 0  # only the k most likely tokens (0: all)
    top_p: float = 1.0  # only the most likely tokens with this total probability
    min_p: float = 0.0  # only tokens with this fraction of the highest probability

    def __post_init__(self) -> None:
        limits = {
            "repetition_penalty": (lambda x: x > 0, "above 0"),
            "temperature": (lambda x: x >= 0, "0 or more"),
            "top_k": (lambda x: 0 <= x < 2**31 and x == int(x), "whole, from 0 to 2147483647"),
            "top_p": (lambda x: 0 < x <= 1, "above 0, at most 1"),
            "min_p": (lambda x: 0 <= x <= 1, "from 0 to 1"),
        }
        for name, (fits, limit) in limits.items():
            value = getattr(self, name)
            legal = isinstance(value, Real) and isfinite(value) and fits(value)
            if legal and name != "top_k" and not fits(_in_32_bits(value)):
                legal, limit = False, f"{limit}, also in 32 bits"
            if isinstance(value, Real) and not isfinite(value):
                limit = f"{limit}, and finite"
            if not legal:
                raise RecurraError.at_user_line(f"{name} is {value!r}, and must be {limit}")

    @property
    def kind(self) -> SamplingStages:
        filtered = bool(self.top_k or self.top_p < 1 or self.min_p) and self.temperature > 0
        return SamplingStages(self.temperature > 0, filtered, self.repetition_penalty != 1)


def _in_32_bits(value: Any) -> float:
    """The number in a program; NaN if it does not fit."""
    return float(np.float32(value)) if abs(value) <= float(np.finfo(np.float32).max) else nan


@dataclass(frozen=True)
class SamplingStages:
    """The parts of sampling that a program has."""

    drawn: bool = False
    filtered: bool = False
    penalized: bool = False

    def __or__(self, other: SamplingStages) -> SamplingStages:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return SamplingStages(*(a or b for a, b in pairs))


@dataclass(frozen=True)
class SamplingInputs:
    """`Sampling` of every row, as inputs of a program over (b,)"""

    kind: SamplingStages
    b: Any

    def names(self) -> list[str]:
        out = ["repetition_penalty"] * self.kind.penalized + ["temperature"] * self.kind.drawn
        return out + list(FILTERS) * self.kind.filtered

    def __getitem__(self, name: str) -> Tensor:
        return rc.input(rc.i32 if name == "top_k" else rc.f32, (self.b,), name=name)

    def arrays(self, rows: Sequence[Sampling]) -> dict[str, np.ndarray]:
        """The arrays for the inputs, [B]."""
        return {
            n: np.array([getattr(r, n) for r in rows], np.int32 if n == "top_k" else np.float32)
            for n in self.names()
        }


def choose(logits: Tensor, how: SamplingInputs, draw: Tensor | None, seen: Tensor | None) -> Tensor:
    """Choose a token, i32[], by logits [V].

    Args:
        draw: uniform in [0, 1), if tokens are drawn.
        seen: bool[V], the earlier tokens, if these are penalized.
    """
    if seen is not None:
        penalty = how["repetition_penalty"]
        lower = rc.where(logits > 0.0, logits / penalty, logits * penalty).clip(-LARGEST, LARGEST)
        logits = rc.where(seen, lower, logits)
    best = logits.argmax()
    if draw is None:
        return best
    temperature = how["temperature"]
    cold = temperature == 0.0
    # The largest is 0; others may overflow, at any temperature, to tokens that are never drawn.
    scaled = (logits - logits.max()) / rc.where(cold, 1.0, temperature)
    drawn = rc.nn.class_at(scaled.softmax(), draw)
    if how.kind.filtered:  # rows without filters are drawn as in a program without filters
        top_k, top_p, min_p = (how[name] for name in FILTERS)
        all_kept = (top_k == 0) & (top_p == 1.0) & (min_p == 0.0)
        drawn = rc.where(all_kept, drawn, _filtered(scaled, top_k, top_p, min_p, draw))
    return rc.where(cold, best, drawn)


def _filtered(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, draw: Tensor) -> Tensor:
    """Draw from the tokens that pass the filters: the first ones, sorted by likelihood."""
    size: Any = logits.shape[0]
    order = (-logits).argsort()
    sorted_, place = logits.take(order), rc.constant(np.arange(size, dtype=np.int32))
    kept = (top_k == 0) | (place < top_k)
    p = rc.where(kept, sorted_, GONE).softmax()
    kept = kept & (p.cumsum() - p < top_p) & (p >= min_p * p.index(0))
    return order.take(rc.nn.class_at(rc.where(kept, p, 0.0), draw))
