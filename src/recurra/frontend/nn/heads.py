"""The last layer of a policy: features to a distribution over actions."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.frontend.dims import Steps
from recurra.frontend.nn import initializers
from recurra.frontend.nn.distributions import Categorical, Gaussian, MultiCategorical
from recurra.frontend.nn.initializers import Initializer
from recurra.frontend.nn.modules import Linear, Module, Parameter
from recurra.frontend.tensor import RecurrentTensor


def _small(init: Initializer | None) -> Initializer:
    """An initializer with which all actions are about as likely at first."""
    return init or initializers.orthogonal(0.01)


class CategoricalHead(Module):
    """[inputs] → one of `actions`"""

    def __init__(self, inputs: int, actions: int, domain: Steps, init: Initializer | None = None):
        self.logits = Linear(inputs, actions, domain, _small(init), "_logits")

    def forward(self, x: RecurrentTensor) -> Categorical:
        return Categorical(self.logits(x))


class MultiCategoricalHead(Module):
    """[inputs] → one of each of `sizes`"""

    def __init__(
        self,
        inputs: int,
        sizes: Sequence[int],
        domain: Steps,
        init: Initializer | None = None,
    ):
        self.sizes = tuple(sizes)
        self.logits = Linear(inputs, sum(sizes), domain, _small(init), "_logits")

    def forward(self, x: RecurrentTensor) -> MultiCategorical:
        return MultiCategorical(self.logits(x), self.sizes)


class GaussianHead(Module):
    """[inputs] → `actions` numbers; their deviation is a parameter of its own, first 1"""

    def __init__(self, inputs: int, actions: int, domain: Steps, init: Initializer | None = None):
        self.mean = Linear(inputs, actions, domain, _small(init), "_mean")
        self.log_std = Parameter(initializers.zeros()((actions,)), domain, "log_std")

    def forward(self, x: RecurrentTensor) -> Gaussian:
        return Gaussian(self.mean(x), self.log_std)
