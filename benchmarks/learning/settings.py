"""The hyper-parameters that CleanRL publishes for classic control, for both programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Told = Callable[[int, int], None]  # seed, iterations done


@dataclass(frozen=True)
class Settings:
    """See `recurra train ppo --help`; `width` is that of two hidden layers."""

    total: int = 500_000  # steps of all environments, at most
    rows: int = 4
    steps: int = 128
    epochs: int = 4
    minibatches: int = 4
    width: int = 64
    lr: float = 2.5e-4
    eps: float = 1e-5
    gamma: float = 0.99
    gae: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    value: float = 0.5
    max_norm: float = 0.5

    @property
    def samples(self) -> int:
        """Steps of one iteration."""
        return self.rows * self.steps

    @property
    def iterations(self) -> int:
        return self.total // self.samples
