"""Optimizers as recurrences: p[i+1] = p[i] - step(grad[i], moments[i])."""

from recurra.frontend.optim.adaptive import Adam, AdamW, RMSprop
from recurra.frontend.optim.clip import clip_grad_norm, clip_grad_value
from recurra.frontend.optim.gradient_descent import SGD
from recurra.frontend.optim.optimizer import Optimizer

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "clip_grad_norm",
    "clip_grad_value",
]
