"""conv_general_dilated as sliding windows and a contraction; channel groups are one more label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recurra.backends.jax.foreign_function import number, refused
from recurra.frontend.tensor import RecurrentTensor
from recurra.ir.op import LETTERS
from recurra.ops.contraction import Einsum
from recurra.ops.movement import Pad
from recurra.ops.window import Windows


def convolution(
    p: Mapping[str, Any], x: RecurrentTensor, weights: RecurrentTensor
) -> RecurrentTensor:
    """Translate a convolution with any layout, strides, padding, dilations and channel groups.

    Dilation of the image makes it a transposed convolution. Raises RecurraError for batch groups.
    """
    if p["batch_group_count"] != 1:
        refused(
            p["refuse"],
            "a convolution of groups of images",
            f"its images are in {p['batch_group_count']} groups",
        )
    spec, groups, n = p["dimension_numbers"], p["feature_group_count"], len(p["window_strides"])
    x, weights = (
        x.transpose(*spec.lhs_spec),
        weights.transpose(*spec.rhs_spec),
    )  # [N, C, ..], [O, C / G, ..]
    batch, channels, *image = x.shape
    outputs, inputs, *sizes = weights.shape
    name, kind = p["refuse"], "a convolution"
    channels, outputs = number(channels, name, kind), number(outputs, name, kind)
    sizes = [number(n, name, kind) for n in sizes]
    x = x.reshape(batch, groups, channels // groups, *image)
    weights = weights.reshape(groups, outputs // groups, inputs, *sizes)
    for k, spacing in enumerate(p["lhs_dilation"], 3):
        number(x.shape[k], name, kind)
        x = _dilated(x, k, spacing)
    for k, (before, after) in enumerate(p["padding"], 3):
        x = _padded(x, k, before, after)
    op = Windows(
        axis=3,
        sizes=tuple(sizes),
        strides=tuple(p["window_strides"]),
        gaps=tuple(p["rhs_dilation"]),
    )
    windows = x.apply(op, x)
    b, g, c, o, *rest = LETTERS[: 4 + 2 * n]
    k, at = "".join(rest[:n]), "".join(rest[n:])
    y = x.apply(Einsum(labels=f"{g}{o}{c}{k},{b}{g}{c}{k}{at}->{b}{g}{o}{at}"), weights, windows)
    y = y.reshape(batch, outputs, *y.shape[3:])
    order = spec.out_spec  # the axes of batch, channels, .. in the result
    return y.transpose(*(order.index(k) for k in range(len(order))))


def _dilated(tensor: RecurrentTensor, axis: int, spacing: int) -> RecurrentTensor:
    """Insert zeros between the elements of an axis, which end up `spacing` apart."""
    *lead, n = tensor.shape[: axis + 1]
    rest = tensor.shape[axis + 1 :]
    assert isinstance(n, int)
    if spacing == 1 or n < 2:
        return tensor
    wide = _padded(tensor.reshape(*lead, n, 1, *rest), axis + 1, 0, spacing - 1)
    return wide.reshape(*lead, n * spacing, *rest).cut(0, (n - 1) * spacing + 1, axis=axis)


def _padded(tensor: RecurrentTensor, axis: int, before: int, after: int) -> RecurrentTensor:
    """Pad an axis with zeros; a negative amount cuts elements off."""
    n = tensor.shape[axis]
    assert isinstance(n, int)
    if before < 0 or after < 0:
        tensor = tensor.cut(max(0, -before), n + min(0, after), axis=axis)
        before, after = max(0, before), max(0, after)
    return (
        tensor.apply(Pad(axis=axis, before=before, after=after), tensor)
        if before or after
        else tensor
    )
