"""Gradient descent: plain, with momentum, with Nesterov's momentum."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.errors import RecurraError
from recurra.frontend.dims import Index
from recurra.frontend.nn.modules import Parameter, advance
from recurra.frontend.optim.optimizer import Optimizer, state
from recurra.frontend.tensor import RecurrentTensor


class SGD(Optimizer):
    """p[i+1] = p[i] - lr · u, where v[i+1] = momentum · v[i] + grad and u = v[i+1]

    With `nesterov` u = grad + momentum · v[i+1]; `weight_decay` adds that much of p to grad.
    """

    def __init__(
        self,
        params: Sequence[Parameter],
        lr: float | Index | RecurrentTensor = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ):
        super().__init__(params, lr)
        self.momentum, self.weight_decay, self.nesterov = momentum, weight_decay, nesterov
        if nesterov and not momentum:
            raise RecurraError.at_user_line(
                "Nesterov's method needs momentum",
                facts=f"momentum is {momentum}",
                hint="say momentum=0.9",
            )

    def direction(self, parameter: Parameter, gradient: RecurrentTensor) -> RecurrentTensor:
        gradient = decayed(parameter, gradient, self.weight_decay)
        return (
            accelerated(parameter, gradient, self.momentum, self.nesterov)
            if self.momentum
            else gradient
        )


def decayed(
    parameter: Parameter, gradient: RecurrentTensor, weight_decay: float
) -> RecurrentTensor:
    """The gradient of the loss plus ½ weight_decay · |p|²"""
    return gradient + parameter * weight_decay if weight_decay else gradient


def accelerated(
    parameter: Parameter, gradient: RecurrentTensor, momentum: float, nesterov: bool = False
) -> RecurrentTensor:
    """Advance the velocity {p}_velocity, and return it, or with `nesterov` its look-ahead."""
    velocity = state(parameter, "velocity")
    new = velocity * momentum + gradient
    advance(velocity, new)
    return gradient + new * momentum if nesterov else new
