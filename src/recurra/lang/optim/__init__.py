"""Optimisers as recurrences: p[i+1] = p[i] - step(grad[i], moments[i])."""

from recurra.lang.optim.adaptive import Adam, AdamW, RMSprop
from recurra.lang.optim.clip import clip_grad_norm, clip_grad_value
from recurra.lang.optim.gradient_descent import SGD
from recurra.lang.optim.optimiser import Optimiser

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimiser",
    "RMSprop",
    "clip_grad_norm",
    "clip_grad_value",
]
