"""Convolution and pooling of images [C, H, W], one image per point (a batch is a dim)."""

from __future__ import annotations

from math import prod

from recurra.errors import ShapeError
from recurra.frontend.dims import Steps
from recurra.frontend.functions import einsum
from recurra.frontend.nn import initializers
from recurra.frontend.nn.initializers import Initializer
from recurra.frontend.nn.modules import Module, Parameter
from recurra.frontend.tensor import RecurrentTensor
from recurra.ops.movement import Pad
from recurra.ops.window import Windows

Pair = int | tuple[int, int]


def pair(x: Pair) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else x


def windows(
    x: RecurrentTensor, sizes: tuple[int, int], strides: tuple[int, int], padding: tuple[int, int]
) -> RecurrentTensor:
    """[C, H, W] → [C, *sizes, H', W'], with zeros around the image."""
    if len(x.shape) != 3:
        raise ShapeError.at_user_line(
            f"an image has the axes channel, height, width, and this is {x!r}",
            hint="a batch is a dim: declare x over (b, ...)",
        )
    for axis, n in enumerate(padding, 1):
        if n:
            x = x.apply(Pad(axis=axis, before=n, after=n), x)
    return x.apply(Windows(axis=1, sizes=sizes, strides=strides), x)


class Conv2d(Module):
    """[C, H, W] → [O, H', W'], H' = ⌊(H + 2 padding - size) / stride⌋ + 1; weight [O, C, *size]"""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        *,
        domain: Steps,
        bias: bool = True,
        init: Initializer | None = None,
    ):
        self.size, self.stride, self.padding = pair(kernel_size), pair(stride), pair(padding)
        shape = (out_channels, in_channels, *self.size)
        start = init or initializers.kaiming_uniform(3**-0.5)
        self.weight = Parameter.drawn(start, shape, domain, "weight")
        self.bias: Parameter | None = None
        if bias:
            bound = (in_channels * prod(self.size)) ** -0.5
            first = initializers.zeros() if init else initializers.uniform(bound)
            self.bias = Parameter.drawn(first, (out_channels,), domain, "bias")

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        patches = windows(x, self.size, self.stride, self.padding)
        y = einsum("ocab,cabhw->ohw", self.weight, patches)
        return y if self.bias is None else y + self.bias.reshape(-1, 1, 1)


class MaxPool2d(Module):
    """[C, H, W] → [C, H', W']: the largest of each window; stride is by default its size"""

    def __init__(self, kernel_size: Pair, stride: Pair | None = None):
        self.size = pair(kernel_size)
        self.stride = self.size if stride is None else pair(stride)

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        return windows(x, self.size, self.stride, (0, 0)).max(axis=(1, 2))


class AvgPool2d(MaxPool2d):
    """[C, H, W] → [C, H', W']: the mean of each window"""

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        return windows(x, self.size, self.stride, (0, 0)).mean(axis=(1, 2))


class Flatten(Module):
    """[C, H, W] → [C H W]"""

    def forward(self, x: RecurrentTensor) -> RecurrentTensor:
        return x.reshape(-1)
