"""Sampling of the next token: greedy, or drawn within temperature, top-k, top-p and min-p.

Settings are values of a row, given when a program runs; which of them there are at all is part of
the program. A draw is a counter-based function of the run's seed, the row and the place in the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite, nan
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

import recurra as rc
from recurra.errors import RecurraError, here

if TYPE_CHECKING:
    from recurra import Tensor

GONE = -1e30  # a logit that is never drawn
LARGEST = 3e38  # of 32 bits
FILTERS = ("top_k", "top_p", "min_p")


@dataclass(frozen=True)
class Sampling:
    """Applied in this order, as in transformers; the defaults leave a token where it is."""

    repetition_penalty: float = 1.0  # logits of tokens that were there: / if > 0, · if < 0
    temperature: float = 0.0  # 0: the most likely one
    top_k: int = 0  # the k most likely (0: all)
    top_p: float = 1.0  # the most likely, until they have this probability together
    min_p: float = 0.0  # those with this part of the probability of the most likely

    def __post_init__(self) -> None:
        limits = {
            "repetition_penalty": (lambda x: x > 0, "above 0"),
            "temperature": (lambda x: x >= 0, "0 or more"),
            "top_k": (lambda x: 0 <= x < 2**31 and x == int(x), "whole, from 0 to 2147483647"),
            "top_p": (lambda x: 0 < x <= 1, "above 0, at most 1"),
            "min_p": (lambda x: 0 <= x <= 1, "from 0 to 1"),
        }
        for name, (fits, said) in limits.items():
            given = getattr(self, name)
            fine = isinstance(given, Real) and isfinite(given) and fits(given)
            if fine and name != "top_k" and not fits(_in_32_bits(given)):
                fine, said = False, f"{said}, also in 32 bits"
            if isinstance(given, Real) and not isfinite(given):
                said = f"{said}, and finite"
            if not fine:
                raise RecurraError(f"{name} is {given!r}, and must be {said}", loc=here())

    @property
    def kind(self) -> Kind:
        filtered = bool(self.top_k or self.top_p < 1 or self.min_p) and self.temperature > 0
        return Kind(self.temperature > 0, filtered, self.repetition_penalty != 1)


def _in_32_bits(given: Any) -> float:
    """The number that a program has; NaN if it does not fit."""
    return float(np.float32(given)) if abs(given) <= float(np.finfo(np.float32).max) else nan


@dataclass(frozen=True)
class Kind:
    """The parts of sampling that a program has."""

    drawn: bool = False
    filtered: bool = False
    penalized: bool = False

    def __or__(self, other: Kind) -> Kind:
        mine = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Kind(*(a or b for a, b in mine))


@dataclass(frozen=True)
class SamplingInputs:
    """`Sampling` of every row, as inputs of a program over (b,)"""

    kind: Kind
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
    """i32[] of logits [V]; `draw` is uniform in [0, 1), `seen` bool[V]: was a token there?"""
    if seen is not None:
        penalty = how["repetition_penalty"]
        lower = rc.where(logits > 0.0, logits / penalty, logits * penalty).clip(-LARGEST, LARGEST)
        logits = rc.where(seen, lower, logits)
    best = logits.argmax()
    if draw is None:
        return best
    temperature = how["temperature"]
    cold = temperature == 0.0
    # From the largest on: the others overflow to what is never drawn, whatever the temperature.
    scaled = (logits - logits.max()) / rc.where(cold, 1.0, temperature)
    drawn = rc.nn.class_at(scaled.softmax(), draw)
    if how.kind.filtered:  # a row without filters is drawn as it is alone, in the tokens' order
        top_k, top_p, min_p = (how[name] for name in FILTERS)
        all_kept = (top_k == 0) & (top_p == 1.0) & (min_p == 0.0)
        drawn = rc.where(all_kept, drawn, _filtered(scaled, top_k, top_p, min_p, draw))
    return rc.where(cold, best, drawn)


def _filtered(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, draw: Tensor) -> Tensor:
    """Draw from the tokens that are kept: the first so many, sorted by likelihood."""
    size: Any = logits.shape[0]
    order = (-logits).argsort()
    sorted_, place = logits.take(order), rc.constant(np.arange(size, dtype=np.int32))
    kept = (top_k == 0) | (place < top_k)
    p = rc.where(kept, sorted_, GONE).softmax()
    kept = kept & (p.cumsum() - p < top_p) & (p >= min_p * p.index(0))
    return order.take(rc.nn.class_at(rc.where(kept, p, 0.0), draw))
