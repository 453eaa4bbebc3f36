"""Rotary positions (Su et al., 2021): the frequencies of a head, and their stretching.

Types are those of `rope_type` in config.json; `from_dict` reads the old spelling (rope_theta,
rope_scaling) and the new one (rope_parameters), which `config` joins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# the keys of each type beside rope_theta: required, optional
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
    """Rotary positions; `length` is the number of positions of training before stretching."""

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
        """The scale of cosines and sines, YaRN's attention factor; 1 for other types."""
        if self.type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _mscale(self.factor, self.mscale) / _mscale(self.factor, self.mscale_all_dim)
        return _mscale(self.factor, 1.0)

    def reach(self, positions: int) -> float:
        """The most positions, stretched, of a model with so many in its config."""
        if self.type == "dynamic":
            return math.inf
        return max(positions, self.length * self.factor if self.type in ("linear", "yarn") else 0)

    def frequencies(self, size: int) -> np.ndarray:
        """Radians per position, f64 [size / 2]; for `dynamic`, those up to `length` positions."""
        plain = self.theta ** -(np.arange(0, size, 2) / size)
        if self.type == "linear":
            return plain / self.factor
        if self.type == "llama3":
            return self._llama3(plain)
        if self.type == "yarn":
            return self._yarn(plain, size)
        return plain

    def _llama3(self, plain: np.ndarray) -> np.ndarray:
        """Stretch long waves, keep short ones, and mix those between (Dubey et al., 2024)."""
        turns = self.length * plain / (2 * math.pi)
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        share = np.clip(share, 0.0, 1.0)
        return (1 - share) * plain / self.factor + share * plain

    def _yarn(self, plain: np.ndarray, size: int) -> np.ndarray:
        """Stretch by a ramp over axes of `beta_fast` to `beta_slow` turns (Peng et al., 2023)."""

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


def from_dict(params: Mapping[str, Any], theta: float, length: int) -> Rope:
    """Return the rope of a `rope_parameters` object, whose keys `config` has checked.

    `theta` is its base, `length` the number of positions of training.
    """
    kind = str(params.get("rope_type") or params.get("type") or "default")
    required, optional = KEYS[kind]
    own = {k: params[k] for k in (*required, *optional) if params.get(k) is not None}
    return Rope(theta, length, kind, **own)
