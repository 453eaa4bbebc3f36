"""The Array API names that operators use, on torch tensors.

Words of 32 bits (`uint32`, which torch cannot add or shift) are held in int32: sums, products and
xor are the same bits; a shift to the right fills with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch.overrides import handle_torch_function, has_torch_function

from recurra.codegen.widened_product import in_parts
from recurra.ops.random import threefry_rounds

Given = ParamSpec("Given")
Made = TypeVar("Made")
Tensor = torch.Tensor
DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def inferring(make: Callable[Given, Made]) -> Callable[Given, Made]:
    """A function that makes tensors in inference mode, which the first that is called enters."""

    @wraps(make)
    def run(*args: Given.args, **options: Given.kwargs) -> Made:
        if torch.is_inference_mode_enabled():
            return make(*args, **options)
        with torch.inference_mode():
            return make(*args, **options)

    return run


@cache
def dtype_of(name: Any) -> torch.dtype:
    """The dtype that holds numbers of a NumPy dtype, or of its name."""
    return name if isinstance(name, torch.dtype) else DTYPES[np.dtype(name).name]


def axes_of(x: Tensor, axis: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    return (axis,) if isinstance(axis, int) else tuple(axis)


def widened(labels: str, dtype: str, *xs: Tensor) -> Tensor:
    """A product whose operands are widened part by part."""

    def cast(x: Tensor) -> Tensor:
        return x.to(dtype_of(dtype))

    def empty(shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.empty(shape, dtype=dtype_of(dtype), device=xs[0].device)

    return in_parts(labels, dtype, xs, cast, torch.einsum, empty)


def threefry(*given: Tensor) -> Any:
    """`ops.random.threefry` of tensors; where calls are written down, it is one."""
    if has_torch_function(given):
        return handle_torch_function(threefry, given, *given)
    if given[0].device.type != "meta":
        return threefry_rounds(TorchNamespace(given[0].device.type), *given)
    shape = torch.broadcast_shapes(*(x.shape for x in given))
    held = [torch.empty(shape, dtype=torch.int32, device="meta") for _ in range(5)]  # in a round
    return tuple(held[:2])


class TorchNamespace:
    """`xp` for operators; tensors are made on one device, and in inference mode."""

    def __init__(self, device: str):
        self.device = device

    # ---- making

    def asarray(self, x: Any, dtype: Any = None, copy: bool | None = None) -> Tensor:
        to = None if dtype is None else dtype_of(dtype)
        if copy and isinstance(x, Tensor):
            return x.to(to or x.dtype, copy=True)
        if isinstance(x, Tensor):
            return x if to is None or x.dtype == to else x.to(to)
        if isinstance(x, np.ndarray):
            return self.constant(x if dtype is None else x.astype(dtype))
        if to is None:
            to = {bool: torch.bool, float: torch.float32}.get(type(x), torch.int32)
        if to == torch.int32 and not -(2**31) <= x < 2**31:
            x -= 2**32
        return self.full((), x, to)

    @inferring
    def constant(self, x: np.ndarray) -> Tensor:
        """A tensor with the numbers of an array, in memory of its own."""
        x = x.copy() if min(x.strides, default=0) < 0 else x  # PyTorch has no strides below 0
        bits = {"uint32": np.int32, "bfloat16": np.int16}.get(x.dtype.name, x.dtype)
        held = torch.tensor(x.view(bits), device=self.device)
        return held.view(dtype_of(x.dtype))

    @inferring
    def full(self, shape: Sequence[int], value: Any, dtype: Any) -> Tensor:
        return torch.full(tuple(shape), value, dtype=dtype_of(dtype), device=self.device)

    @inferring
    def zeros(self, shape: Sequence[int], dtype: Any) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype_of(dtype), device=self.device)

    @inferring
    def zeros_like(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def arange(self, n: int, dtype: Any = "int32") -> Tensor:
        return torch.arange(n, dtype=dtype_of(dtype), device=self.device)

    # ---- moving

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return x if tuple(x.shape) == tuple(shape) else torch.reshape(x, tuple(shape))

    def broadcast_to(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return torch.broadcast_to(x, tuple(shape))

    def permute_dims(self, x: Tensor, order: Sequence[int]) -> Tensor:
        return torch.permute(x, tuple(order))

    def expand_dims(self, x: Tensor, axis: int) -> Tensor:
        return torch.unsqueeze(x, axis)

    def flip(self, x: Tensor, axis: int) -> Tensor:
        return torch.flip(x, (axis,))

    def concat(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(tuple(xs), axis)

    def pad(self, x: Tensor, widths: Sequence[tuple[int, int]], constant_values: float) -> Tensor:
        flat = [n for pair in reversed(widths) for n in pair]
        return torch.nn.functional.pad(x, flat, value=constant_values)

    def take(self, x: Tensor, at: Any, axis: int, mode: str = "raise") -> Tensor:
        at = self.asarray(at)
        if mode == "clip":
            at = torch.clip(at.to(torch.int64), 0, x.shape[axis] - 1)
        y = torch.index_select(x, axis, torch.reshape(at, (-1,)))
        return self.reshape(y, (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]))

    def take_along_axis(self, x: Tensor, at: Tensor, axis: int) -> Tensor:
        return torch.take_along_dim(x, at.to(torch.int64), axis)

    # ---- folding

    def sum(self, x: Tensor, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
        axes = axes_of(x, axis)
        to = x.dtype if dtype is None else dtype_of(dtype)
        return torch.sum(x, axes, keepdim=keepdims, dtype=to) if axes else x.to(to)

    def prod(self, x: Tensor, axis: tuple[int, ...], dtype: Any) -> Tensor:
        for a in sorted(axis, reverse=True):
            x = torch.prod(x, a, dtype=dtype_of(dtype))
        return x

    def max(self, x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
        axes = axes_of(x, axis)
        return torch.amax(x, axes, keepdim=keepdims) if axes else x

    def min(self, x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
        axes = axes_of(x, axis)
        return torch.amin(x, axes, keepdim=keepdims) if axes else x

    def any(self, x: Tensor, axis: Any = None) -> Tensor:
        axes = axes_of(x, axis)
        return torch.any(x, axes) if axes else x

    def all(self, x: Tensor, axis: Any = None) -> Tensor:
        axes = axes_of(x, axis)
        return torch.all(x, axes) if axes else x

    def argmax(self, x: Tensor, axis: int) -> Tensor:
        return torch.argmax(x.to(torch.uint8) if x.dtype == torch.bool else x, axis)

    def argsort(self, x: Tensor, axis: int, stable: bool) -> Tensor:
        return torch.argsort(self.sortable(x), dim=axis, stable=stable)

    def sort(self, x: Tensor, axis: int) -> Tensor:
        return torch.sort(self.sortable(x), dim=axis)[0]

    def sortable(self, x: Tensor) -> Tensor:
        """A GPU sorts by the bits: a NaN with a sign would come first."""
        if self.device == "cpu" or not x.is_floating_point():
            return x
        return torch.where(x == x, x, torch.nan)

    def cumsum(self, x: Tensor, axis: int, dtype: Any) -> Tensor:
        return torch.cumsum(x, axis, dtype=dtype_of(dtype))

    def cumprod(self, x: Tensor, axis: int, dtype: Any) -> Tensor:
        return torch.cumprod(x, axis, dtype=dtype_of(dtype))

    def cummax(self, x: Tensor, axis: int) -> Tensor:
        return torch.cummax(x, axis)[0]

    def joined_at(self, join: str, x: Tensor, i: Tensor, v: Tensor, axis: int) -> Tensor:
        i, front = i.to(torch.int64), (*(slice(None),) * axis, slice(x.shape[axis]))
        x = self.pad(x, [(0, int(k == axis)) for k in range(x.ndim)], 0)
        if join == "set":
            return torch.scatter(x, axis, i, v)[front]
        how = {"add": "sum", "minimum": "amin", "maximum": "amax"}[join]
        return torch.scatter_reduce(x, axis, i, v, how)[front]

    def widened(self, labels: str, dtype: str, *xs: Tensor) -> Tensor:
        return widened(labels, dtype, *xs)

    def einsum(self, labels: str, *xs: Tensor) -> Tensor:
        if xs[0].is_floating_point():
            return torch.einsum(labels, *xs)
        if self.device == "cpu":  # torch sums an axis that one operand has in 64 bits
            return torch.einsum(labels, *xs).to(xs[0].dtype)
        return self.summed_products(labels, *xs)

    def summed_products(self, labels: str, *xs: Tensor) -> Tensor:
        """An einsum of integers, whose products cuBLAS has not: all of them, and then their sum."""
        ins, out = labels.split("->")
        every = [*out, *sorted(set(ins) - set(out) - {","})]
        product: Tensor | None = None
        for x, mine in zip(xs, ins.split(","), strict=True):
            have = [c for c in every if c in mine]
            x = torch.einsum(f"{mine}->{''.join(have)}", x)
            size = dict(zip(have, x.shape, strict=True))
            x = torch.reshape(x, tuple(size.get(c, 1) for c in every))
            product = x if product is None else product * x
        assert product is not None
        return self.sum(product, tuple(range(len(out), len(every))), xs[0].dtype)

    # ---- pointwise

    def where(self, c: Any, a: Tensor, b: Tensor) -> Tensor:
        return torch.where(self.asarray(c), a, b)

    def maximum(self, a: Any, b: Any) -> Tensor:
        return torch.maximum(self.asarray(a), self.asarray(b))

    def minimum(self, a: Any, b: Any) -> Tensor:
        return torch.minimum(self.asarray(a), self.asarray(b))

    def sign(self, x: Tensor) -> Tensor:
        """Torch calls the sign of what is no number 0."""
        return torch.where(x == x, torch.sign(x), x)

    def clip(self, x: Any, low: Any, high: Any) -> Tensor:
        return torch.clip(self.asarray(x), low, high)

    threefry = staticmethod(threefry)

    def bitwise_right_shift(self, x: Tensor, count: int) -> Tensor:
        return (x >> count) & ((1 << (32 - count)) - 1)

    def __getattr__(self, name: str) -> Any:
        """Names that torch shares with the standard."""
        return getattr(torch, name)
