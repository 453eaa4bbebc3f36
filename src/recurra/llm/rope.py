"""Rotary positions (Su et al., 2021): the frequencies of a head, and how they are stretched.

Types are those of `rope_type` in config.json; `Rope.from_dict` reads the old spelling (rope_theta,
rope_scaling) and the new one (rope_parameters) once `config` has joined them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# what a type reads beside rope_theta: needed, optional
KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ()),
    "yarn": (
        ("factor",),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
}


@dataclass(frozen=True)
class Rope:
    """`length`: positions that the model was trained on, before it was stretched."""

    theta: float
    length: int
    type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    attention_factor: float | None = None

    @property
    def scale(self) -> float:
        """The scale of cosines and sines (YaRN's attention factor); 1 but for yarn."""
        if self.type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _mscale(self.factor, self.mscale) / _mscale(self.factor, self.mscale_all_dim)
        return _mscale(self.factor, 1.0)

    def reach(self, positions: int) -> float:
        """The most positions of a model that says it has so many."""
        if self.type == "dynamic":
            return math.inf
        return max(positions, self.length * self.factor if self.type in ("linear", "yarn") else 0)

    def frequencies(self, size: int) -> np.ndarray:
        """Radians per position, f64 [size / 2]; of `dynamic`, those of up to `length` positions."""
        plain = self.theta ** -(np.arange(0, size, 2) / size)
        if self.type == "linear":
            return plain / self.factor
        if self.type == "llama3":
            return self._llama3(plain)
        if self.type == "yarn":
            return self._yarn(plain, size)
        return plain

    def _llama3(self, plain: np.ndarray) -> np.ndarray:
        """Long waves are stretched, short ones kept, those between mixed (Dubey et al., 2024)."""
        turns = self.length * plain / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(kept, 0.0, 1.0)
        return (1 - kept) * plain / self.factor + kept * plain

    def _yarn(self, plain: np.ndarray, size: int) -> np.ndarray:
        """A ramp over the axes, between `beta_fast` and `beta_slow` turns (Peng et al., 2023)."""

        def axis(turns: float) -> float:
            full = math.log(self.length / (turns * 2 * math.pi))
            return size * full / (2 * math.log(self.theta))

        low, high = axis(self.beta_fast), axis(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        high += 0.001 * (low == high)
        stretched = np.clip((np.arange(size // 2) - low) / (high - low), 0.0, 1.0)
        return stretched * plain / self.factor + (1 - stretched) * plain


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def from_dict(given: Mapping[str, Any], theta: float, length: int) -> Rope:
    """The values of one `rope_parameters`, whose keys `config` has looked at.

    `theta` is its base, `length` the positions that the model was trained on.
    """
    kind = str(given.get("rope_type") or given.get("type") or "default")
    needed, optional = KEYS[kind]
    own = {k: given[k] for k in (*needed, *optional) if given.get(k) is not None}
    return Rope(theta, length, kind, **own)
