"""Methods of tensors that reduce axes: sums, means, norms, extrema.

`axis` is one axis, several, or None for all; `keepdims` keeps reduced axes with size 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf

from recurra.errors import ShapeError
from recurra.frontend.axes import Axes, axes_of
from recurra.frontend.index_arguments import BareIndex, wrap
from recurra.frontend.operator_table import operator
from recurra.frontend.reshaping import expand, squeeze
from recurra.frontend.tensor_base import Operand, Tensor
from recurra.frontend.tensor_conversion import as_float, convert, pointwise
from recurra.ir.expr import mul
from recurra.ir.types import accumulator, is_float, join
from recurra.ops import elementwise as el
from recurra.ops import reduction


def _reduced(tensor: Tensor, op: type[reduction.Reduction], axis: Axes, keepdims: bool) -> Tensor:
    axes = axes_of(tensor, axis)
    y = tensor.apply(op(axes=axes), tensor)
    for a in axes if keepdims else ():
        y = expand(y, 1, a)
    return y


@operator("x.sum(axis=0)", "np.sum", "torch.sum")
def sum(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Σ along axes; i32 for truth values and integers below 32 bits."""
    return _reduced(x.cast(accumulator(x.dtype)), reduction.Sum, axis, keepdims)


@operator("x.prod(axis=0)", "np.prod", "torch.prod")
def prod(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Π along axes, of the type that `sum` has."""
    return _reduced(x.cast(accumulator(x.dtype)), reduction.Prod, axis, keepdims)


@operator("x.mean(axis=0)", "np.mean", "torch.mean")
def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean, computed in f32 at least; of the operand's type, f32 for integers."""
    y = _at_least_f32(x)
    out = _narrowed(sum(y, axis, keepdims) / convert(y.kind, _count(x, axis), y.dtype), x)
    out.mean_of_nothing = not x.shape
    return out


@operator("x.var(axis=0, correction=0)", "np.var", "torch.var")
def var(x: Tensor, axis: Axes = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The variance: squared deviations over n - correction; torch's default correction is 1."""
    return _narrowed(_variance(x, axis, correction, keepdims), x)


@operator("x.std(axis=0, correction=0)", "np.std", "torch.std")
def std(x: Tensor, axis: Axes = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The standard deviation, the square root of `var`; its slope at 0 is 0."""
    return _narrowed(_root(_variance(x, axis, correction, keepdims)), x)


def _variance(tensor: Tensor, axis: Axes, correction: float, keepdims: bool) -> Tensor:
    if not tensor.shape and tensor.domain.dims:
        dims = ", ".join(tensor.domain.dims) + "," * (len(tensor.domain) == 1)
        raise ShapeError.at_user_line(
            "the deviation of one number is 0",
            facts=f"this is {tensor!r}: a number at every point, without an axis",
            hint=f"write rc.rl.normalize(x, over=({dims})), or "
            f"x[{', '.join(f'0:{r.hi}' for r in tensor.domain)}].std() of all points",
        )
    y = _at_least_f32(tensor)
    total = sum((y - mean(y, axis, True)).square(), axis, keepdims)
    left = convert(y.kind, _count(tensor, axis), y.dtype) - correction
    return total / pointwise(y.kind, el.Maximum, left, 0.0)


@operator("x.norm(ord=2, axis=0)", "np.linalg.vector_norm", "torch.linalg.vector_norm")
def norm(x: Tensor, ord: float = 2, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The norm (Σ |x|ᵖ)^(1/p), p = ord; inf: the largest |x|, 0: the count; slope 0 at 0."""
    y = _at_least_f32(x)
    if ord == 0:
        return _narrowed(sum((y != 0.0).cast(y.dtype), axis, keepdims), x)
    if abs(ord) == inf:
        return _narrowed((max if ord > 0 else min)(y.abs(), axis, keepdims), x)
    if ord == 1:
        return _narrowed(sum(y.abs(), axis, keepdims), x)
    if ord == 2:
        return _narrowed(_root(sum(y.square(), axis, keepdims)), x)
    total = sum(y.abs() ** float(ord), axis, keepdims)
    return _narrowed(_off_zero(total, lambda z: z ** (1.0 / ord)), x)


@operator("x.logsumexp(axis=0)", "np.logaddexp.reduce", "torch.logsumexp")
def logsumexp(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """ln Σ eˣ along axes, without overflow of eˣ."""
    y = _at_least_f32(x)
    top = max(y, axis, True).detach()
    top = pointwise(y.kind, el.Where, top.abs() < inf, top, 0.0)
    found = sum((y - top).exp(), axis, True).log() + top
    return _narrowed(found if keepdims else squeeze(found, axes_of(x, axis)), x)


@operator("x.max(axis=0)", "np.max", "torch.amax", positions="x.argmax")
def max(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest element; equal ones share the gradient."""
    return _reduced(x, reduction.Max, axis, keepdims)


@operator("x.min(axis=0)", "np.min", "torch.amin", positions="x.argmin")
def min(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The smallest element; equal ones share the gradient."""
    return _reduced(x, reduction.Min, axis, keepdims)


@operator("x.any(axis=0)", "np.any", "torch.any")
def any(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Is any element true, or not 0?"""
    return _reduced(_truth(x), reduction.Any_, axis, keepdims)


@operator("x.all(axis=0)", "np.all", "torch.all")
def all(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Are all elements true, or not 0?"""
    return _reduced(_truth(x), reduction.All, axis, keepdims)


@operator("x.argmax(axis=-1)", "np.argmax", "torch.argmax")
def argmax(x: Tensor, axis: int = -1, keepdims: bool = False) -> Tensor:
    """The first position of the largest element along an axis, i32."""
    return _reduced(x, reduction.ArgMax, axis, keepdims)


@operator("x.argmin(axis=-1)", "np.argmin", "torch.argmin")
def argmin(x: Tensor, axis: int = -1, keepdims: bool = False) -> Tensor:
    """The first position of the smallest element along an axis, i32."""
    negated = -x if is_float(x.dtype) else ~x  # -x of the smallest integer would overflow
    return argmax(negated, axis, keepdims)


def _count(operand: Operand, axis: Axes) -> BareIndex | int:
    """The number of elements that are reduced to one."""
    return wrap(reduce(mul, (operand.shape[a] for a in axes_of(operand, axis)), 1))


def _truth(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == "bool" else tensor != 0


def _at_least_f32(tensor: Tensor) -> Tensor:
    """Cast to a float of at least 32 bits, in which sums of f16 are accurate."""
    return tensor.cast(join(tensor.dtype, "f32"))


def _narrowed(result: Tensor, operand: Operand) -> Tensor:
    """Cast a result that was computed in f32 back to the operand's float type."""
    return result.cast(as_float(operand).dtype)


def _root(tensor: Tensor) -> Tensor:
    return _off_zero(tensor, lambda y: y.sqrt())


def _off_zero(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply f, where f(0) = 0 with an infinite slope, so that the slope at 0 is 0, as in torch."""
    is_zero = tensor == 0.0
    found = function(pointwise(tensor.kind, el.Where, is_zero, 1.0, tensor))
    return pointwise(tensor.kind, el.Where, is_zero, 0.0, found)
