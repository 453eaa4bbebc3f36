"""MnasNet-B1: depthwise convolutions between narrow ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from recurra.mapping.models.training import Model, Tree, cross_entropy, momentum, shapes
from recurra.mapping.models.vision import LAYOUT, convolved, normalized, scaled_layer

# output channels, size of the depthwise kernel, stride, expansion, blocks (MnasNet, table 1 of B1)
STAGES = (
    (24, 3, 2, 3, 3),
    (40, 5, 2, 3, 3),
    (80, 5, 2, 6, 3),
    (96, 3, 1, 6, 2),
    (192, 5, 2, 6, 4),
    (320, 3, 1, 6, 1),
)


Step = tuple[int, int, int, int]  # kernel, input and output channels, stride; depthwise if negative


def _steps() -> list[tuple[Step, ...]]:
    """The convolutions of each block; a block of three may have a skip connection around it."""
    blocks: list[tuple[Step, ...]] = [((3, 3, 32, 2), (3, -32, 32, 1), (1, 32, 16, 1))]
    channels = 16
    for out, kernel, stride, expansion, count in STAGES:
        for k in range(count):
            wide = channels * expansion
            middle = (kernel, -wide, wide, stride if k == 0 else 1)
            blocks.append(((1, channels, wide, 1), middle, (1, wide, out, 1)))
            channels = out
    return [*blocks, ((1, channels, 1280, 1),)]


def _parameters() -> Tree:
    def layer(kernel: int, inputs: int, outputs: int, _: int) -> Tree:
        return scaled_layer(kernel, kernel, 1 if inputs < 0 else inputs, outputs)

    blocks = [[layer(*step) for step in block] for block in _steps()]
    return shapes({"blocks": blocks, "head": (1280, 1000)})


def depthwise(array: Array, kernel: Array, stride: int) -> Array:
    channels = array.shape[-1]
    return lax.conv_general_dilated(
        array,
        kernel,
        (stride, stride),
        "SAME",
        dimension_numbers=LAYOUT,
        feature_group_count=channels,
    )


def _logits(weights: Tree, array: Array, training: bool) -> Array:
    for block, layers in zip(_steps(), weights["blocks"], strict=True):
        y = array
        for k, ((_, inputs, _, stride), layer) in enumerate(zip(block, layers, strict=True)):
            y = (depthwise if inputs < 0 else convolved)(y, layer["w"], stride)
            y = normalized(y, layer, training)
            y = y if k == 2 else jax.nn.relu(y)  # the narrow ends are linear
        array = array + y if y.shape == array.shape else y
    return array.mean((1, 2)) @ weights["head"]


def mnasnet_inference(batch: int = 32) -> Model:
    """Logits of 224 × 224 images."""
    images = shapes((batch, 224, 224, 3))

    def logits(weights: Tree, array: Array) -> Array:
        return _logits(weights, array, False)

    return logits, (_parameters(), images), ()


def mnasnet_training(batch: int = 16) -> Model:
    """A training step with batch normalization."""
    weights = _parameters()
    data = (shapes((batch, 224, 224, 3)), shapes((batch,), jnp.int32))

    def loss(weights: Tree, array: Array, labels: Array) -> Array:
        return cross_entropy(_logits(weights, array, True), labels)

    return momentum(loss), (weights, weights, *data), (0, 1)
