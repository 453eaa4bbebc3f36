"""Layers whose parameters are recurrences."""

from recurra.lang.nn.distributions import Categorical
from recurra.lang.nn.modules import MLP, DNNBuilder, Linear, Module, Parameter, Sequential, Tanh

__all__ = [
    "MLP",
    "Categorical",
    "DNNBuilder",
    "Linear",
    "Module",
    "Parameter",
    "Sequential",
    "Tanh",
]
