"""AlexNet (one column, as in torchvision), ResNet-50, and MnasNet-B1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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
RESNET_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks and width of ResNet-50
# output channels, size of the depthwise kernel, stride, expansion, blocks (MnasNet, table 1 of B1)
MNASNET_STAGES = (
    (24, 3, 2, 3, 3),
    (40, 5, 2, 3, 3),
    (80, 5, 2, 6, 3),
    (96, 3, 1, 6, 2),
    (192, 5, 2, 6, 4),
    (320, 3, 1, 6, 1),
)
Step = tuple[int, int, int, int]  # kernel, input and output channels, stride; depthwise if negative


def convolved(
    array: Array,
    kernel: Array,
    stride: int = 1,
    padding: str | Sequence[tuple[int, int]] = "SAME",
    groups: int = 1,
) -> Array:
    """Convolve images [B, H, W, C] with a kernel [h, w, C / groups, D]."""
    return lax.conv_general_dilated(
        array,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=LAYOUT,
        feature_group_count=groups,
    )


def depthwise(array: Array, kernel: Array, stride: int) -> Array:
    """Convolve each channel of images [B, H, W, C] with its own kernel [h, w, 1, C]."""
    return convolved(array, kernel, stride, groups=array.shape[-1])


def pooled(array: Array) -> Array:
    """Max-pool windows of 3 × 3 with stride 2."""
    return lax.reduce_window(array, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")


def scaled_layer(*kernel: int) -> Tree:
    """Return the sizes of a kernel [h, w, C, D], and of the scale and shift of its channels [D]."""
    return {"w": kernel, "scale": kernel[-1:], "shift": kernel[-1:]}


def normalized(array: Array, layer: Tree, training: bool) -> Array:
    """Apply the scale and shift of a layer, after batch normalization in training."""
    if training:
        mean, variance = array.mean((0, 1, 2)), array.var((0, 1, 2))
        array = (array - mean) * lax.rsqrt(variance + 1e-5)
    return array * layer["scale"] + layer["shift"]


def _training(logits: Callable[..., Array], weights: Tree, batch: int, side: int) -> Model:
    """Return a training step (momentum) on square images."""

    def loss(weights: Tree, images: Array, labels: Array) -> Array:
        return cross_entropy(logits(weights, images), labels)

    images, labels = shapes((batch, side, side, 3)), shapes((batch,), jnp.int32)
    return momentum(loss, weights, images, labels)


def alexnet(batch: int = 32) -> Model:
    """A training step on 224 × 224 images: function, shapes, donated arguments."""
    kernels = [(11, 11, 3, 64), (5, 5, 64, 192), (3, 3, 192, 384), (3, 3, 384, 256)]
    kernels += [(3, 3, 256, 256)]
    dense = [(6 * 6 * 256, 4096), (4096, 4096), (4096, 1000)]
    parameters = shapes({"conv": dense_layers(*kernels), "dense": dense_layers(*dense)})

    def logits(weights: Tree, array: Array) -> Array:
        for k, layer in enumerate(weights["conv"]):
            stride, padding = (4, [(2, 2), (2, 2)]) if k == 0 else (1, "SAME")
            array = jax.nn.relu(convolved(array, layer["w"], stride, padding) + layer["b"])
            array = pooled(array) if k in (0, 1, 4) else array
        array = array.reshape(batch, -1)
        for k, layer in enumerate(weights["dense"]):
            array = array @ layer["w"] + layer["b"]
            array = jax.nn.relu(array) if k < 2 else array
        return array

    return _training(logits, parameters, batch, 224)


def _resnet_parameters() -> Tree:
    """Three convolutions a block; the first block of a stage has a projection around them."""
    blocks: list[Tree] = []
    channels = 64
    for count, width in RESNET_STAGES:
        for k in range(count):
            kernels = [(1, 1, channels, width), (3, 3, width, width), (1, 1, width, 4 * width)]
            block: Tree = {"conv": [scaled_layer(*kernel) for kernel in kernels]}
            if k == 0:
                block["project"] = (1, 1, channels, 4 * width)
            blocks.append(block)
            channels = 4 * width
    return shapes({"stem": (7, 7, 3, 64), "blocks": blocks, "head": (2048, 1000)})


def _resnet(weights: Tree, array: Array, training: bool) -> Array:
    array = pooled(jax.nn.relu(convolved(array, weights["stem"], 2)))
    for k, block in enumerate(weights["blocks"]):
        stride = 2 if k in (3, 7, 13) else 1  # the first blocks of later stages
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
    return partial(_resnet, training=False), (_resnet_parameters(), images), ()


def resnet_training(batch: int = 16) -> Model:
    """A training step on 160 × 160 images with batch normalization."""
    return _training(partial(_resnet, training=True), _resnet_parameters(), batch, 160)


def _mnasnet_steps() -> list[tuple[Step, ...]]:
    """The convolutions of each block; a block of three may have a skip connection around it."""
    blocks: list[tuple[Step, ...]] = [((3, 3, 32, 2), (3, -32, 32, 1), (1, 32, 16, 1))]
    channels = 16
    for out, kernel, stride, expansion, count in MNASNET_STAGES:
        for k in range(count):
            wide = channels * expansion
            middle = (kernel, -wide, wide, stride if k == 0 else 1)
            blocks.append(((1, channels, wide, 1), middle, (1, wide, out, 1)))
            channels = out
    return [*blocks, ((1, channels, 1280, 1),)]


def _mnasnet_parameters() -> Tree:
    def layer(kernel: int, inputs: int, outputs: int, _: int) -> Tree:
        return scaled_layer(kernel, kernel, 1 if inputs < 0 else inputs, outputs)

    blocks = [[layer(*step) for step in block] for block in _mnasnet_steps()]
    return shapes({"blocks": blocks, "head": (1280, 1000)})


def _mnasnet(weights: Tree, array: Array, training: bool) -> Array:
    for block, layers in zip(_mnasnet_steps(), weights["blocks"], strict=True):
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
    return partial(_mnasnet, training=False), (_mnasnet_parameters(), images), ()


def mnasnet_training(batch: int = 16) -> Model:
    """A training step on 224 × 224 images with batch normalization."""
    return _training(partial(_mnasnet, training=True), _mnasnet_parameters(), batch, 224)
