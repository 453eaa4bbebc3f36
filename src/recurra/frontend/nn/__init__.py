"""Neural-network layers, whose parameters are recurrences over the training step."""

from typing import TYPE_CHECKING

from recurra.frontend.foreign_names import only
from recurra.frontend.nn import initializers
from recurra.frontend.nn.attention import MultiheadAttention
from recurra.frontend.nn.convolution import AvgPool2d, Conv2d, Flatten, MaxPool2d
from recurra.frontend.nn.distributions import Categorical, Gaussian, MultiCategorical, class_at
from recurra.frontend.nn.heads import CategoricalHead, GaussianHead, MultiCategoricalHead
from recurra.frontend.nn.modules import (
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
from recurra.frontend.nn.normalization import Dropout, Embedding, LayerNorm, RMSNorm
from recurra.frontend.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

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
    "initializers",
]

if not TYPE_CHECKING:
    __getattr__ = only("recurra.nn", __all__, {"initialise": "initializers"}, __name__)
