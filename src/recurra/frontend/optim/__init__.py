"""Optimizers as recurrences: p[i+1] = p[i] - step(grad[i], moments[i])."""

from typing import TYPE_CHECKING

from recurra.frontend.foreign_names import only
from recurra.frontend.optim.adaptive import Adam, AdamW, RMSprop
from recurra.frontend.optim.clip import clip_grad_norm, clip_grad_value
from recurra.frontend.optim.gradient_descent import SGD
from recurra.frontend.optim.optax import Transformed, from_optax
from recurra.frontend.optim.optimizer import Optimizer

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "Transformed",
    "clip_grad_norm",
    "clip_grad_value",
    "from_optax",
]

if not TYPE_CHECKING:
    __getattr__ = only("recurra.optim", __all__, {"Optimiser": "Optimizer"}, __name__)
