"""An actor and a critic, each a network of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from recurra.errors import RecurraError, here
from recurra.lang.nn import initialise
from recurra.lang.nn.distributions import Categorical
from recurra.lang.nn.modules import Linear, Module, Sequential, Tanh
from recurra.lang.tensor import RecurrentTensor


class ActorCritic(Module):
    """pi, v = net(o): a categorical policy and a value [], of a flat observation.

    Layers of `hidden` tanh, orthogonal weights: √2 inside, 0.01 for the policy, 1 for the value.
    Raises RecurraError for an environment with other spaces.
    """

    def __init__(self, env: Any, hidden: Sequence[int], domain: Sequence[Any]):
        seen, actions = env.observation_space.type, env.actions
        if seen.rank != 1 or not isinstance(actions, int):
            raise RecurraError(
                "an actor and critic need a flat observation and discrete actions",
                facts=f"the observation is {seen}, the action space {env.action_space}",
                hint="build them of rc.nn.Linear, and a head for its actions",
                loc=here(),
            )
        sizes = [*seen.shape, *hidden]
        self.actor = layers([*sizes, actions], domain, 0.01, "a")
        self.critic = layers([*sizes, 1], domain, 1.0, "c")

    def forward(self, o: RecurrentTensor) -> tuple[Categorical, RecurrentTensor]:
        return Categorical(self.actor(o)), self.critic(o).index(0)


def layers(sizes: Sequence[int], domain: Sequence[Any], last_gain: float, label: str) -> Sequential:
    """Linear layers with tanh between, called Wa1, ba1, .."""
    out: list[Module] = []
    for k, (inputs, outputs) in enumerate(pairwise(sizes), 1):
        final = k == len(sizes) - 1
        gain = last_gain if final else 2**0.5
        out.append(Linear(inputs, outputs, domain, initialise.orthogonal(gain), f"{label}{k}"))
        if not final:
            out.append(Tanh())
    return Sequential(*out)
