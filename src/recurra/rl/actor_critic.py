"""A module of an actor and a critic, which are separate networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from recurra.frontend.dims import Steps
from recurra.frontend.nn import initializers
from recurra.frontend.nn.modules import Linear, Module, Parameter, Sequential, Tanh
from recurra.frontend.nn.spaces import Spaces
from recurra.frontend.tensor import RecurrentTensor


class ActorCritic(Module):
    """pi, v = net(o): a distribution over the actions of an environment, and a value [].

    Layers of `hidden` tanh, orthogonal weights: √2 inside, 0.01 for the policy, 1 for the value.
    The observation is flattened to one vector. Raises RecurraError for an action space without
    a distribution.
    """

    def __init__(self, env: object, hidden: Sequence[int], domain: Steps):
        self.spaces = Spaces(env)
        sizes = [self.spaces.width, *hidden]
        self.actor = network_layers([*sizes, self.spaces.outputs], domain, 0.01, "a")
        self.critic = network_layers([*sizes, 1], domain, 1.0, "c")
        if self.spaces.deviations:
            zeros = initializers.zeros()((self.spaces.deviations,))
            self.log_std = Parameter(zeros, domain, "log_std")

    def forward(self, observation: object) -> tuple[object, RecurrentTensor]:
        x = self.spaces.vector(observation)
        pi = self.spaces.distribution(self.actor(x), getattr(self, "log_std", None))
        return pi, self.critic(x).index(0)


def network_layers(sizes: Sequence[int], domain: Steps, last_gain: float, label: str) -> Sequential:
    """Linear layers with tanh between, called Wa1, ba1, .."""
    out: list[Module] = []
    for k, (inputs, outputs) in enumerate(pairwise(sizes), 1):
        final = k == len(sizes) - 1
        gain = last_gain if final else 2**0.5
        out.append(Linear(inputs, outputs, domain, initializers.orthogonal(gain), f"{label}{k}"))
        if not final:
            out.append(Tanh())
    return Sequential(*out)
