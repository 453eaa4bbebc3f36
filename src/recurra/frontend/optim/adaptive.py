"""Adaptive optimizers, which scale every element by the size of its past gradients."""

from __future__ import annotations

from collections.abc import Sequence

from recurra.frontend.dims import Index
from recurra.frontend.nn.modules import Parameter, advance
from recurra.frontend.optim.gradient_descent import accelerated, decayed
from recurra.frontend.optim.optimizer import Optimizer, count, state
from recurra.frontend.tensor import RecurrentTensor
from recurra.support import adam


class RMSprop(Optimizer):
    """RMSprop (Hinton, 2012): g / (√v + eps), v the mean of g², or with `centered` the variance"""

    def __init__(
        self,
        params: Sequence[Parameter],
        lr: float | Index | RecurrentTensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ):
        super().__init__(params, lr)
        self.alpha, self.eps, self.weight_decay = alpha, eps, weight_decay
        self.momentum, self.centered = momentum, centered

    def direction(self, parameter: Parameter, gradient: RecurrentTensor) -> RecurrentTensor:
        gradient = decayed(parameter, gradient, self.weight_decay)
        size = self.averaged(parameter, "v", gradient.square())
        if self.centered:
            size = size - self.averaged(parameter, "m", gradient).square()
        step = gradient / (size.sqrt() + self.eps)
        return accelerated(parameter, step, self.momentum) if self.momentum else step

    def averaged(self, parameter: Parameter, name: str, tensor: RecurrentTensor) -> RecurrentTensor:
        old = state(parameter, name)
        new = old * self.alpha + tensor * (1 - self.alpha)
        advance(old, new)
        return new


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), bias-corrected"""

    def __init__(
        self,
        params: Sequence[Parameter],
        lr: float | Index | RecurrentTensor = 1e-3,
        betas: tuple[float, float] = adam.BETAS,
        eps: float = adam.EPS,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay

    def direction(self, parameter: Parameter, gradient: RecurrentTensor) -> RecurrentTensor:
        return self.moments(parameter, decayed(parameter, gradient, self.weight_decay))

    def moments(self, parameter: Parameter, gradient: RecurrentTensor) -> RecurrentTensor:
        """Advance both moments, and return the mean of g over the root of the mean of g²."""
        m, v = state(parameter, "m"), state(parameter, "v")
        m1, v1 = adam.moments(RecurrentTensor, gradient, m, v, self.betas)
        advance(m, m1)
        advance(v, v1)
        return adam.direction(RecurrentTensor, m1, v1, count(parameter), self.betas, self.eps)


class AdamW(Adam):
    """AdamW (Loshchilov and Hutter, 2019): Adam with decoupled weight decay"""

    def __init__(
        self,
        params: Sequence[Parameter],
        lr: float | Index | RecurrentTensor = 1e-3,
        betas: tuple[float, float] = adam.BETAS,
        eps: float = adam.EPS,
        weight_decay: float = 1e-2,
    ):
        super().__init__(params, lr, betas, eps, weight_decay)

    def direction(self, parameter: Parameter, gradient: RecurrentTensor) -> RecurrentTensor:
        return decayed(parameter, self.moments(parameter, gradient), self.weight_decay)
