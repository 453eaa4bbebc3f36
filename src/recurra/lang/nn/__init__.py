"""Layers whose parameters are recurrences."""

from typing import TYPE_CHECKING

from recurra.lang.nn import initialise
from recurra.lang.nn.attention import MultiheadAttention
from recurra.lang.nn.convolution import AvgPool2d, Conv2d, Flatten, MaxPool2d
from recurra.lang.nn.distributions import Categorical, Gaussian, MultiCategorical, class_at
from recurra.lang.nn.heads import CategoricalHead, GaussianHead, MultiCategoricalHead
from recurra.lang.nn.modules import (
    MLP,
    DNNBuilder,
    Linear,
    Module,
    Parameter,
    ReLU,
    Sequential,
    Sigmoid,
    SiLU,
    Tanh,
)
from recurra.lang.nn.normalisation import Dropout, Embedding, LayerNorm, RMSNorm
from recurra.lang.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from recurra.lang.words import only

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "RNN",
    "AvgPool2d",
    "Categorical",
    "CategoricalHead",
    "Conv2d",
    "DNNBuilder",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "Gaussian",
    "GaussianHead",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "Module",
    "MultiCategorical",
    "MultiCategoricalHead",
    "MultiheadAttention",
    "Parameter",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Tanh",
    "class_at",
    "initialise",
]

if not TYPE_CHECKING:
    __getattr__ = only("recurra.nn", __all__)
