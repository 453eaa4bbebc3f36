"""Probability distributions, as policies return them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from math import log, pi
from operator import add
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from recurra.analysis.argument_checks import check_arguments
from recurra.analysis.graph_builder import DrawnSample, current
from recurra.errors import ShapeError
from recurra.frontend.creation import zeros
from recurra.frontend.dims import Dims, wrap
from recurra.frontend.foreign_names import no_attribute
from recurra.frontend.functions import box_of, constant, normal, stack, uniform, where
from recurra.frontend.tensor import RecurrentTensor
from recurra.ir.types import Domain, is_float


def class_at(weights: RecurrentTensor, draw: RecurrentTensor) -> RecurrentTensor:
    """The class (i32[]) at which the running sum of weights [A] exceeds `draw` times their total.

    `draw` is in [0, 1). A class of weight 0 is never drawn, even if rounding makes sums equal: its
    sum is set to 0, and the total is the largest of the sums.
    """
    size = weights.shape[-1]
    if weights.dtype in ("f16", "bf16"):
        weights = weights.cast("f32")  # in which a draw stays below 1
    sums = where(weights > 0.0, weights.cumsum(), 0.0)
    if isinstance(size, int):
        place = constant(np.arange(size, dtype=np.int32))
    else:  # the size of a range: x[0:t+1]
        place = constant(1, "i32").expand(size).cumsum() - 1
    return where(sums > draw * sums.max(), place, wrap(size) - 1).min()


def _draw_domain(domain: Dims | None, tensor: RecurrentTensor) -> Domain:
    """The domain of independent draws: `domain`, or by default that of the parameters."""
    return tensor.domain if domain is None else box_of(domain)


def _recorded(sample: RecurrentTensor, kind: str, *params: RecurrentTensor) -> RecurrentTensor:
    """Record a sample in the program, with its distribution."""
    current().drawn.append(DrawnSample(sample, kind, params))
    return sample


_WRITTEN = "write pi = rc.nn.Categorical(x.index(0)); a = pi.sample(); pi.log_prob(a)"


class Distribution(ABC):
    """The interface of a distribution: `sample`, `log_prob`, `entropy`, and `mode` to be greedy."""

    @abstractmethod
    def sample(self, domain: Dims | None = None) -> Any:
        """Draw a value, independently at every point of `domain` (default: that of the parameters).

        No gradient passes through it; `Gaussian.rsample` passes one.
        """

    @abstractmethod
    def mode(self) -> Any:
        """The most likely value"""

    @abstractmethod
    def log_prob(self, value: Any) -> RecurrentTensor:
        """ln p[a], f32[]"""

    @abstractmethod
    def entropy(self) -> RecurrentTensor:
        """-E ln p, f32[]"""

    def __init_subclass__(cls) -> None:
        for word in ("__init__", "log_prob", "sample"):
            if word in vars(cls):
                called = f"rc.nn.{cls.__name__}" if word == "__init__" else f"pi.{word}"
                setattr(cls, word, check_arguments(vars(cls)[word], called, _WRITTEN))

    def __repr__(self) -> str:
        parts = ", ".join(f"{k}={x!r}" for k, x in vars(self).items())
        return f"{type(self).__name__}({parts})"

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("the distribution", self, name)


class Categorical(Distribution):
    """A distribution over {0..A-1}, by logits [A]"""

    def __init__(self, logits: RecurrentTensor):
        if len(logits.shape) != 1:
            raise ShapeError.at_user_line(
                "a categorical distribution has logits of one axis",
                facts=f"these are {logits!r}; one of its elements is drawn at every point",
                hint="let rows be a dim, not an axis: logits over (b, t); of one row: logits[0]",
            )
        self.logits = logits

    @property
    def probs(self) -> RecurrentTensor:
        return self.logits.softmax()

    def sample(self, domain: Dims | None = None) -> RecurrentTensor:
        """A class (i32[]), by the inverse CDF of a uniform draw; never one of probability 0

        Draws are independent at every point of `domain`, by default that of the logits.
        """
        a = class_at(self.probs, uniform(_draw_domain(domain, self.logits)))
        return _recorded(a, "categorical", self.logits)

    def mode(self) -> RecurrentTensor:
        """The most likely class, i32[]; the first of several"""
        return self.logits.argmax()

    def log_prob(self, value: RecurrentTensor) -> RecurrentTensor:
        if is_float(value.dtype):
            raise ShapeError.at_user_line(
                "a class is a whole number",
                facts=f"this is {value!r}",
                hint='write pi.log_prob(a.cast("i32")) if it counts classes',
            )
        return self.logits.log_softmax().take(value)

    def entropy(self) -> RecurrentTensor:
        """-Σ p ln p, where classes of probability 0 contribute 0"""
        p = self.probs
        return -(p * where(p > 0.0, self.logits.log_softmax(), 0.0)).sum()


class MultiCategorical(Distribution):
    """Several independent categorical choices, the k-th of `sizes[k]` classes; logits [Σ sizes]"""

    def __init__(self, logits: RecurrentTensor, sizes: Sequence[int]):
        if logits.shape != (sum(sizes),):
            raise ShapeError.at_user_line(
                f"the logits of {len(sizes)} choices lie one after the other in one axis",
                facts=f"these are {logits!r}, and the sizes {', '.join(map(str, sizes))}",
                hint=f"give logits of shape ({sum(sizes)},)",
            )
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        self.parts = [
            Categorical(logits.cut(end - n, end)) for n, end in zip(sizes, ends, strict=True)
        ]

    def sample(self, domain: Dims | None = None) -> RecurrentTensor:
        """Draw a class of each choice, i32[n]"""
        return stack([p.sample(domain) for p in self.parts])

    def mode(self) -> RecurrentTensor:
        """The most likely class of each choice, i32[n]"""
        return stack([p.mode() for p in self.parts])

    def log_prob(self, value: RecurrentTensor) -> RecurrentTensor:
        """Σ ln p[a], f32[]"""
        if value.shape != (len(self.parts),):
            raise ShapeError.at_user_line(
                f"what was chosen of {len(self.parts)} choices is {len(self.parts)} numbers",
                facts=f"this is {value!r}",
                hint=f"give integers of shape ({len(self.parts)},), as sample() does",
            )
        return reduce(add, (p.log_prob(value.index(k)) for k, p in enumerate(self.parts)))

    def entropy(self) -> RecurrentTensor:
        return reduce(add, (p.entropy() for p in self.parts))


class Gaussian(Distribution):
    """Independent normal distributions, by mean [A] and log of the standard deviation [A]"""

    def __init__(self, mean: RecurrentTensor, log_std: RecurrentTensor):
        if mean.shape != log_std.shape:  # broadcast both
            sizes, dtype = [wrap(n) for n in log_std.shape], log_std.dtype
            log_std = log_std + zeros([wrap(n) for n in mean.shape], dtype)
            mean = mean + zeros(sizes, mean.dtype)
        self.mean, self.log_std = mean, log_std

    def rsample(self, domain: Dims | None = None) -> RecurrentTensor:
        """Draw f32[A], independently at every point of `domain`; gradients pass to mean and std."""
        std = self.log_std.exp()
        box = _draw_domain(domain, self.mean + std)
        draws = normal(box, self.mean.shape, self.mean.dtype)  # pyright: ignore[reportArgumentType]
        return _recorded(self.mean + std * draws, "gaussian", self.mean, self.log_std)

    def sample(self, domain: Dims | None = None) -> RecurrentTensor:
        """Draw f32[A]; no gradient passes"""
        return self.rsample(domain).detach()

    def mode(self) -> RecurrentTensor:
        """The mean, f32[A]"""
        return self.mean

    def log_prob(self, value: RecurrentTensor) -> RecurrentTensor:
        """The log of the density, f32[]"""
        if value.shape != self.mean.shape:
            raise ShapeError.at_user_line(
                "a value of a normal distribution has the shape of its mean",
                facts=f"this is {value!r}, the mean {self.mean!r}",
                hint="give what sample() gives, or reshape it as that is",
            )
        z = (value - self.mean) / self.log_std.exp()
        return -(z.square() * 0.5 + self.log_std + 0.5 * log(2 * pi)).sum()

    def entropy(self) -> RecurrentTensor:
        """The differential entropy, f32[]"""
        return (self.log_std + 0.5 * (1 + log(2 * pi))).sum()
