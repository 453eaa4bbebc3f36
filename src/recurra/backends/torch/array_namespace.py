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

Params = ParamSpec("Params")
Result = TypeVar("Result")
Tensor = torch.Tensor
OF_ONE_NAME = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool",
)  # fmt: skip
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in OF_ONE_NAME}
DTYPES["uint32"] = torch.int32


def in_inference_mode(make: Callable[Params, Result]) -> Callable[Params, Result]:
    """Run a function in inference mode, unless that is on already."""

    @wraps(make)
    def run(*args: Params.args, **options: Params.kwargs) -> Result:
        if torch.is_inference_mode_enabled():
            return make(*args, **options)
        with torch.inference_mode():
            return make(*args, **options)

    return run


@cache
def dtype_of(name: Any) -> torch.dtype:
    """The torch dtype for numbers of a NumPy dtype, or of its name."""
    return name if isinstance(name, torch.dtype) else DTYPES[np.dtype(name).name]


def axes_of(tensor: Tensor, axis: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(tensor.ndim))
    return (axis,) if isinstance(axis, int) else tuple(axis)


def widened(labels: str, dtype: str, *xs: Tensor) -> Tensor:
    """A contraction whose operands are cast to `dtype` part by part."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype_of(dtype))

    def empty(shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.empty(shape, dtype=dtype_of(dtype), device=xs[0].device)

    return in_parts(labels, dtype, xs, cast, torch.einsum, empty)


def threefry(*args: Tensor) -> Any:
    """`ops.random.threefry` on tensors; recorded as one call."""
    if has_torch_function(args):
        return handle_torch_function(threefry, args, *args)
    if args[0].device.type != "meta":
        return threefry_rounds(TorchNamespace(args[0].device.type), *args)
    shape = torch.broadcast_shapes(*(x.shape for x in args))
    live = [torch.empty(shape, dtype=torch.int32, device="meta") for _ in range(5)]  # in a round
    return tuple(live[:2])


class TorchNamespace:
    """The array namespace `xp` of operators; tensors are made on one device, in inference mode."""

    def __init__(self, device: str):
        self.device = device

    # ---- making

    def asarray(self, array: Any, dtype: Any = None, copy: bool | None = None) -> Tensor:
        to = None if dtype is None else dtype_of(dtype)
        if copy and isinstance(array, Tensor):
            return array.to(to or array.dtype, copy=True)
        if isinstance(array, Tensor):
            return array if to is None or array.dtype == to else array.to(to)
        if isinstance(array, np.ndarray):
            return self.constant(array if dtype is None else array.astype(dtype))
        if to is None:
            to = {bool: torch.bool, float: torch.float32}.get(type(array), torch.int32)
        if to == torch.int32 and not -(2**31) <= array < 2**31:
            array -= 2**32
        return self.full((), array, to)

    @in_inference_mode
    def constant(self, array: np.ndarray) -> Tensor:
        """Copy a NumPy array to a tensor."""
        if min(array.strides, default=0) < 0:  # which PyTorch does not support
            array = array.copy()
        bits = {"uint32": np.int32, "bfloat16": np.int16}.get(array.dtype.name, array.dtype)
        tensor = torch.tensor(array.view(bits), device=self.device)
        return tensor.view(dtype_of(array.dtype))

    @in_inference_mode
    def full(self, shape: Sequence[int], value: Any, dtype: Any) -> Tensor:
        return torch.full(tuple(shape), value, dtype=dtype_of(dtype), device=self.device)

    @in_inference_mode
    def zeros(self, shape: Sequence[int], dtype: Any) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype_of(dtype), device=self.device)

    @in_inference_mode
    def zeros_like(self, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)

    def arange(self, count: int, dtype: Any = "int32") -> Tensor:
        return torch.arange(count, dtype=dtype_of(dtype), device=self.device)

    # ---- moving

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        shape = tuple(shape)
        return tensor if tuple(tensor.shape) == shape else torch.reshape(tensor, shape)

    def broadcast_to(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        return torch.broadcast_to(tensor, tuple(shape))

    def permute_dims(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        return torch.permute(tensor, tuple(order))

    def expand_dims(self, tensor: Tensor, axis: int) -> Tensor:
        return torch.unsqueeze(tensor, axis)

    def flip(self, tensor: Tensor, axis: int) -> Tensor:
        return torch.flip(tensor, (axis,))

    def concat(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(tuple(xs), axis)

    def pad(
        self, tensor: Tensor, widths: Sequence[tuple[int, int]], constant_values: float
    ) -> Tensor:
        flat = [n for pair in reversed(widths) for n in pair]
        return torch.nn.functional.pad(tensor, flat, value=constant_values)

    def take(self, tensor: Tensor, at: Any, axis: int, mode: str = "raise") -> Tensor:
        at = self.asarray(at)
        if mode == "clip":
            at = torch.clip(at.to(torch.int64), 0, tensor.shape[axis] - 1)
        y = torch.index_select(tensor, axis, torch.reshape(at, (-1,)))
        return self.reshape(y, (*tensor.shape[:axis], *at.shape, *tensor.shape[axis + 1 :]))

    def take_along_axis(self, tensor: Tensor, at: Tensor, axis: int) -> Tensor:
        return torch.take_along_dim(tensor, at.to(torch.int64), axis)

    # ---- folding

    def sum(
        self, tensor: Tensor, axis: Any = None, dtype: Any = None, keepdims: bool = False
    ) -> Tensor:
        axes = axes_of(tensor, axis)
        to = tensor.dtype if dtype is None else dtype_of(dtype)
        return torch.sum(tensor, axes, keepdim=keepdims, dtype=to) if axes else tensor.to(to)

    def prod(self, tensor: Tensor, axis: tuple[int, ...], dtype: Any) -> Tensor:
        for a in sorted(axis, reverse=True):
            tensor = torch.prod(tensor, a, dtype=dtype_of(dtype))
        return tensor

    def max(self, tensor: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
        axes = axes_of(tensor, axis)
        return torch.amax(tensor, axes, keepdim=keepdims) if axes else tensor

    def min(self, tensor: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
        axes = axes_of(tensor, axis)
        return torch.amin(tensor, axes, keepdim=keepdims) if axes else tensor

    def any(self, tensor: Tensor, axis: Any = None) -> Tensor:
        axes = axes_of(tensor, axis)
        return torch.any(tensor, axes) if axes else tensor

    def all(self, tensor: Tensor, axis: Any = None) -> Tensor:
        axes = axes_of(tensor, axis)
        return torch.all(tensor, axes) if axes else tensor

    def argmax(self, tensor: Tensor, axis: int) -> Tensor:
        return torch.argmax(tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor, axis)

    def argsort(self, tensor: Tensor, axis: int, stable: bool) -> Tensor:
        return torch.argsort(self.sortable(tensor), dim=axis, stable=stable)

    def sort(self, tensor: Tensor, axis: int) -> Tensor:
        return torch.sort(self.sortable(tensor), dim=axis)[0]

    def sortable(self, tensor: Tensor) -> Tensor:
        """Clear the sign of NaNs: a GPU sorts by bits, so that a negative NaN would come first."""
        if self.device == "cpu" or not tensor.is_floating_point():
            return tensor
        return torch.where(tensor == tensor, tensor, torch.nan)

    def cumsum(self, tensor: Tensor, axis: int, dtype: Any) -> Tensor:
        return torch.cumsum(tensor, axis, dtype=dtype_of(dtype))

    def cumprod(self, tensor: Tensor, axis: int, dtype: Any) -> Tensor:
        return torch.cumprod(tensor, axis, dtype=dtype_of(dtype))

    def cummax(self, tensor: Tensor, axis: int) -> Tensor:
        return torch.cummax(tensor, axis)[0]

    def joined_at(
        self, join: str, tensor: Tensor, indices: Tensor, values: Tensor, axis: int
    ) -> Tensor:
        indices = indices.to(torch.int64)
        front = (*(slice(None),) * axis, slice(tensor.shape[axis]))
        tensor = self.pad(tensor, [(0, int(k == axis)) for k in range(tensor.ndim)], 0)
        if join == "set":
            return torch.scatter(tensor, axis, indices, values)[front]
        how = {"add": "sum", "minimum": "amin", "maximum": "amax"}[join]
        return torch.scatter_reduce(tensor, axis, indices, values, how)[front]

    def widened(self, labels: str, dtype: str, *xs: Tensor) -> Tensor:
        return widened(labels, dtype, *xs)

    def einsum(self, labels: str, *xs: Tensor) -> Tensor:
        if xs[0].is_floating_point():
            return torch.einsum(labels, *xs)
        if self.device == "cpu":  # torch sums an axis that one operand has in 64 bits
            return torch.einsum(labels, *xs).to(xs[0].dtype)
        return self.summed_products(labels, *xs)

    def summed_products(self, labels: str, *xs: Tensor) -> Tensor:
        """An einsum of integers, which cuBLAS lacks: the sum of elementwise products."""
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

    def where(self, condition: Any, left: Tensor, right: Tensor) -> Tensor:
        return torch.where(self.asarray(condition), left, right)

    def maximum(self, left: Any, right: Any) -> Tensor:
        return torch.maximum(self.asarray(left), self.asarray(right))

    def minimum(self, left: Any, right: Any) -> Tensor:
        return torch.minimum(self.asarray(left), self.asarray(right))

    def sign(self, tensor: Tensor) -> Tensor:
        """The sign; NaN for NaN, where torch returns 0."""
        return torch.where(tensor == tensor, torch.sign(tensor), tensor)

    def clip(self, array: Any, low: Any, high: Any) -> Tensor:
        return torch.clip(self.asarray(array), low, high)

    threefry = staticmethod(threefry)

    def bitwise_right_shift(self, tensor: Tensor, count: int) -> Tensor:
        return (tensor >> count) & ((1 << (32 - count)) - 1)

    def __getattr__(self, name: str) -> Any:
        """Functions that torch shares with the Array API."""
        return getattr(torch, name)
