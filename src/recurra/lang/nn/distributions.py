"""What a policy returns."""

from __future__ import annotations

from recurra.lang.functions import uniform
from recurra.lang.tensor import RecurrentTensor


class Categorical:
    """Over {0..A-1}, by logits [A]"""

    def __init__(self, logits: RecurrentTensor):
        self.logits = logits

    @property
    def probs(self) -> RecurrentTensor:
        return self.logits.softmax()

    def sample(self) -> RecurrentTensor:
        """i32[]; inverse CDF of one uniform draw per point: how many of p₀, p₀+p₁, .. it tops."""
        last = self.logits.shape[-1]
        u = uniform(self.logits.domain, dtype=self.logits.dtype)
        below = self.probs.cumsum(axis=0).cut(0, last - 1) < u
        return below.cast("i32").sum(axis=0)

    def log_prob(self, a: RecurrentTensor) -> RecurrentTensor:
        """ln p[a], f32[]"""
        return self.logits.log_softmax().take(a)

    def entropy(self) -> RecurrentTensor:
        return -(self.probs * self.logits.log_softmax()).sum()
