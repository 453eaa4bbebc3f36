"""What a policy returns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import log, pi
from operator import add

from recurra.lang.functions import normal, stack, uniform
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


class MultiCategorical:
    """Several choices at once, independent: the k-th among `sizes[k]`; logits [Σ sizes]"""

    def __init__(self, logits: RecurrentTensor, sizes: Sequence[int]):
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        self.parts = [
            Categorical(logits.cut(end - n, end)) for n, end in zip(sizes, ends, strict=True)
        ]

    def sample(self) -> RecurrentTensor:
        """i32[n]"""
        return stack([p.sample() for p in self.parts])

    def log_prob(self, a: RecurrentTensor) -> RecurrentTensor:
        """Σ ln p[a], f32[]"""
        return reduce(add, (p.log_prob(a.index(k)) for k, p in enumerate(self.parts)))

    def entropy(self) -> RecurrentTensor:
        return reduce(add, (p.entropy() for p in self.parts))


class Gaussian:
    """Independent normals, by mean [A] and the logarithm of the standard deviation [A]"""

    def __init__(self, mean: RecurrentTensor, log_std: RecurrentTensor):
        self.mean, self.log_std = mean, log_std

    def rsample(self) -> RecurrentTensor:
        """f32[A]; gradients pass to mean and deviation."""
        sizes = tuple(n for n in self.mean.shape if isinstance(n, int))
        spread = self.log_std.exp()
        draws = normal((self.mean + spread).domain, sizes, self.mean.dtype)
        return self.mean + spread * draws

    def sample(self) -> RecurrentTensor:
        """f32[A]"""
        return self.rsample().detach()

    def log_prob(self, a: RecurrentTensor) -> RecurrentTensor:
        """ln of the density, f32[]"""
        z = (a - self.mean) / self.log_std.exp()
        return -(z.square() * 0.5 + self.log_std + 0.5 * log(2 * pi)).sum()

    def entropy(self) -> RecurrentTensor:
        """f32[]"""
        return (self.log_std + 0.5 * (1 + log(2 * pi))).sum()
