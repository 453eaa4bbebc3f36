"""Normalization over the last axes of a value, and dropout."""

from __future__ import annotations

from recurra.errors import ShapeError
from recurra.frontend.dims import Index, Steps
from recurra.frontend.functions import uniform, where
from recurra.frontend.nn import initializers
from recurra.frontend.nn.modules import Module, Parameter
from recurra.frontend.tensor import RecurrentTensor


class Normalization(Module):
    """The base of layers that normalize over the last axes, of sizes `normalized_shape`

    The result is scaled by `weight` and shifted by `bias`.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        domain: Steps,
        eps: float,
        elementwise_affine: bool,
        bias: bool,
    ):
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.shape, self.eps = shape, eps
        self.weight = self.bias = None
        if elementwise_affine:
            self.weight = Parameter(initializers.ones()(shape), domain, "weight")
            self.bias = Parameter(initializers.zeros()(shape), domain, "bias") if bias else None

    def mean(self, tensor: RecurrentTensor) -> RecurrentTensor:
        """The mean over the normalized axes, which are kept with size 1."""
        rank = len(self.shape)
        if tensor.shape[-rank:] != self.shape:
            raise ShapeError.at_user_line(
                f"{type(self).__name__} is over the last axes {self.shape}",
                facts=f"this is {tensor!r}",
            )
        kept = tensor.shape[: len(tensor.shape) - rank]
        return tensor.mean(axis=tuple(range(-rank, 0))).reshape(*kept, *(1,) * rank)

    def scaled(self, tensor: RecurrentTensor) -> RecurrentTensor:
        tensor = tensor if self.weight is None else tensor * self.weight
        return tensor if self.bias is None else tensor + self.bias


class LayerNorm(Normalization):
    """y = (x - mean) / √(variance + eps) · weight + bias (Ba et al., 2016)"""

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        domain: Steps,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ):
        super().__init__(normalized_shape, domain, eps, elementwise_affine, bias)

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        x = x - self.mean(x)
        return self.scaled(x / (self.mean(x.square()) + self.eps).sqrt())


class RMSNorm(Normalization):
    """y = x / √(mean of x² + eps) · weight (Zhang and Sennrich, 2019)"""

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        domain: Steps,
        eps: float = 2.0**-23,
        elementwise_affine: bool = True,
    ):
        super().__init__(normalized_shape, domain, eps, elementwise_affine, bias=False)

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        return self.scaled(x / (self.mean(x.square()) + self.eps).sqrt())


class Dropout(Module):
    """y = x / (1 - p), or 0 with probability p, drawn at every point; gradients use the same draw

    There is no training mode: for evaluation, write the network without this layer, or give a
    recurrent tensor as `p` that is 0 there.
    """

    def __init__(self, p: float | Index | RecurrentTensor = 0.5):
        self.p = p

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        sizes = [n for n in x.shape if isinstance(n, int)]
        if len(sizes) != len(x.shape):
            raise ShapeError.at_user_line(
                "dropout of an axis of symbolic size",
                facts=f"this is {x!r}",
                hint="drop elements before they are read as a range",
            )
        kept = uniform(x.domain, tuple(sizes)) >= self.p
        return where(kept, x / (1.0 - self.p), 0.0)


class Embedding(Module):
    """A table lookup, i32 → f32[embedding_dim]; weight [num_embeddings, embedding_dim]"""

    def __init__(self, num_embeddings: int, embedding_dim: int, domain: Steps):
        shape = (num_embeddings, embedding_dim)
        self.weight = Parameter.drawn(initializers.normal(), shape, domain, "weight")

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        return self.weight.take(x, axis=0)
