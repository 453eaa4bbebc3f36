"""Last layers of policies, from features to a distribution over actions."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.frontend.dims import Steps
from recurra.frontend.nn import initializers
from recurra.frontend.nn.distributions import Categorical, Gaussian, MultiCategorical
from recurra.frontend.nn.initializers import Initializer
from recurra.frontend.nn.modules import Linear, Module, Parameter
from recurra.frontend.tensor import RecurrentTensor


def _small(init: Initializer | None) -> Initializer:
    """The default initializer of a head: small weights, so that all actions are about as likely."""
    return init or initializers.orthogonal(0.01)


class CategoricalHead(Module):
    """[inputs] → a categorical distribution over `actions` classes"""

    def __init__(self, inputs: int, actions: int, domain: Steps, init: Initializer | None = None):
        self.logits = Linear(inputs, actions, domain, _small(init), "_logits")

    def forward(self, x: RecurrentTensor) -> Categorical:
        return Categorical(self.logits(x))


class MultiCategoricalHead(Module):
    """[inputs] → independent categorical distributions over `sizes[k]` classes each"""

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
    """[inputs] → `actions` normal distributions; their deviation is a parameter, initially 1"""

    def __init__(self, inputs: int, actions: int, domain: Steps, init: Initializer | None = None):
        self.mean = Linear(inputs, actions, domain, _small(init), "_mean")
        self.log_std = Parameter(initializers.zeros()((actions,)), domain, "log_std")

    def forward(self, x: RecurrentTensor) -> Gaussian:
        return Gaussian(self.mean(x), self.log_std)
