"""AlexNet (one column, as torchvision has it) and ResNet-50."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from recurra.mapping.models.training import (
    Model,
    Tree,
    cross_entropy,
    dense_layers,
    momentum,
    shapes,
)

LAYOUT = ("NHWC", "HWIO", "NHWC")
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks and width of ResNet-50


def convolved(
    array: Array, kernel: Array, stride: int = 1, padding: str | Sequence[tuple[int, int]] = "SAME"
) -> Array:
    """Convolve images [B, H, W, C] with a kernel [h, w, C, D]."""
    return lax.conv_general_dilated(
        array, kernel, (stride, stride), padding, dimension_numbers=LAYOUT
    )


def pooled(array: Array) -> Array:
    """Max-pool windows of 3 × 3 with stride 2."""
    return lax.reduce_window(array, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")


def alexnet(batch: int = 32) -> Model:
    """A training step on 224 × 224 images: function, shapes, donated arguments."""
    kernels = [(11, 11, 3, 64), (5, 5, 64, 192), (3, 3, 192, 384), (3, 3, 384, 256)]
    kernels += [(3, 3, 256, 256)]
    dense = [(6 * 6 * 256, 4096), (4096, 4096), (4096, 1000)]
    parameters = shapes({"conv": dense_layers(*kernels), "dense": dense_layers(*dense)})

    def loss(weights: Tree, array: Array, labels: Array) -> Array:
        for k, layer in enumerate(weights["conv"]):
            stride, padding = (4, [(2, 2), (2, 2)]) if k == 0 else (1, "SAME")
            array = jax.nn.relu(convolved(array, layer["w"], stride, padding) + layer["b"])
            array = pooled(array) if k in (0, 1, 4) else array
        array = array.reshape(batch, -1)
        for k, layer in enumerate(weights["dense"]):
            array = array @ layer["w"] + layer["b"]
            array = jax.nn.relu(array) if k < 2 else array
        return cross_entropy(array, labels)

    data = (shapes((batch, 224, 224, 3)), shapes((batch,), jnp.int32))
    return momentum(loss), (parameters, parameters, *data), (0, 1)


def scaled_layer(*kernel: int) -> Tree:
    """Return the sizes of a kernel [h, w, C, D], and of the scale and shift of its channels [D]."""
    return {"w": kernel, "scale": kernel[-1:], "shift": kernel[-1:]}


def _resnet_parameters() -> Tree:
    """Three convolutions a block; the first block of a stage has a projection around them."""
    blocks: list[Tree] = []
    channels = 64
    for count, width in STAGES:
        for k in range(count):
            kernels = [(1, 1, channels, width), (3, 3, width, width), (1, 1, width, 4 * width)]
            block = {"conv": [scaled_layer(*kernel) for kernel in kernels]}
            if k == 0:
                block["project"] = (1, 1, channels, 4 * width)
            blocks.append(block)
            channels = 4 * width
    return shapes({"stem": (7, 7, 3, 64), "blocks": blocks, "head": (2048, 1000)})


def normalized(array: Array, layer: Tree, training: bool) -> Array:
    if training:
        mean, variance = array.mean((0, 1, 2)), array.var((0, 1, 2))
        array = (array - mean) * lax.rsqrt(variance + 1e-5)
    return array * layer["scale"] + layer["shift"]


def _resnet(weights: Tree, array: Array, training: bool) -> Array:
    array = pooled(jax.nn.relu(convolved(array, weights["stem"], 2)))
    first = {0, 3, 7, 13}
    for k, block in enumerate(weights["blocks"]):
        stride = 2 if k in first - {0} else 1
        y = array
        for j, layer in enumerate(block["conv"]):
            y = convolved(y, layer["w"], stride if j == 1 else 1)
            y = normalized(y, layer, training)
            y = jax.nn.relu(y) if j < 2 else y
        array = convolved(array, block["project"], stride) if "project" in block else array
        array = jax.nn.relu(array + y)
    return array.mean((1, 2)) @ weights["head"]


def resnet_inference(batch: int = 16) -> Model:
    """Logits of 224 × 224 images, normalization folded to scale and shift."""
    images = shapes((batch, 224, 224, 3))

    def logits(weights: Tree, array: Array) -> Array:
        return _resnet(weights, array, False)

    return logits, (_resnet_parameters(), images), ()


def resnet_training(batch: int = 16) -> Model:
    """A training step on 160 × 160 images with batch normalization."""
    weights = _resnet_parameters()
    data = (shapes((batch, 160, 160, 3)), shapes((batch,), jnp.int32))

    def loss(weights: Tree, array: Array, labels: Array) -> Array:
        return cross_entropy(_resnet(weights, array, True), labels)

    return momentum(loss), (weights, weights, *data), (0, 1)
