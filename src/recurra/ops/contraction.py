"""Einsum, the op of all contractions."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.op import Array, Op, add_label, label_sizes, summable
from recurra.ir.types import NUMPY_NAME, WIDTH, Type, is_float
from recurra.ops.movement import Expand


def _inseparable(labels: tuple[str, ...]) -> str | None:
    """Two labels that are adjacent wherever they occur, and can be joined to one axis."""
    for s in labels:
        for pair in (s[k : k + 2] for k in range(len(s) - 1)):
            if all((pair in t) or not set(pair) & set(t) for t in labels):
                return pair
    return None


def _size(label: str, ins: tuple[str, ...], xs: tuple[Array, ...]) -> int:
    """The length of a label's axis."""
    return next(x.shape[s.index(label)] for s, x in zip(ins, xs, strict=True) if label in s)


def result_shape(labels: str, *xs: Array) -> tuple[int, ...]:
    """The shape of a contraction."""
    ins, out = labels.split("->")
    sizes = {
        c: n
        for s, x in zip(ins.split(","), xs, strict=True)
        for c, n in zip(s, x.shape, strict=True)
    }
    return tuple(sizes[c] for c in out)


def contract(xp: ArrayNamespace, labels: str, dtype: str, *xs: Array) -> Array:
    """Contract on an array namespace; with `dtype`, widen the operands to it."""
    if not dtype:
        return (numpy_einsum if xp is np else xp.einsum)(labels, *xs)
    if xp is np:
        return numpy_einsum(labels, *(x.astype(NUMPY_NAME[dtype], copy=False) for x in xs))
    return xp.widened(labels, NUMPY_NAME[dtype], *xs)


def numpy_einsum(labels: str, *xs: Array) -> Array:
    """Contract NumPy arrays, also of bfloat16, which np.einsum lacks.

    Over no elements, np.einsum (2.4) multiplies uninitialized memory by 0, which may give NaN.
    """
    if not all(x.size for x in xs):
        return np.zeros(result_shape(labels, *xs), xs[0].dtype)
    if xs[0].dtype.name != "bfloat16":
        return np.einsum(labels, *xs)
    wide = (x.astype(np.float32) for x in xs)
    return np.einsum(labels, *wide).astype(xs[0].dtype)


def widens(dtype: str, to: str) -> bool:
    """Tell whether a type can hold every number of another: it is the same, or a wider float."""
    return dtype == to or (dtype != "bool" and is_float(to) and WIDTH[dtype] < WIDTH[to])


class Einsum(Op):
    """y = Σ over the labels that the result lacks of the product of the operands

    With `dtype`, operands may have fewer bits: the product widens them as it reads them.
    """

    labels: str
    dtype: str = ""

    def parts(self) -> tuple[tuple[str, ...], str]:
        ins, out = self.labels.split("->")
        return tuple(ins.split(",")), out

    @property
    def sums(self) -> bool:
        """Tell whether an operand has a label that the result lacks."""
        ins, out = self.parts()
        return any(c not in out for s in ins for c in s)

    def infer(self, *xs: Type) -> Type:
        ins, out = self.parts()
        if len(ins) != len(xs):
            raise TypeError(f"einsum: {self.labels} has {len(ins)} operands, got {len(xs)}")
        types = {x.dtype for x in xs}
        match = all(widens(t, self.dtype) for t in types) if self.dtype else len(types) == 1
        if not match:
            raise TypeError(f"einsum: operands have types {', '.join(x.dtype for x in xs)}")
        sizes = label_sizes("einsum", ins, xs)
        if set(out) - set(sizes) or len(set(out)) != len(out):
            raise TypeError(
                f"einsum: the result of {self.labels} is not made of its operands' axes"
            )
        dtype = self.dtype or xs[0].dtype
        if self.sums:
            summable(self.name, dtype)
        return Type(dtype, tuple(sizes[c] for c in out))

    def eval(self, xp: ArrayNamespace, *xs: Array) -> Array:
        ins, out = self.parts()
        if len(xs) != 2:
            return contract(xp, self.labels, self.dtype, *xs)
        sizes = {
            c: n for s, x in zip(ins, xs, strict=True) for c, n in zip(s, x.shape, strict=True)
        }
        first = next((c for c in out if not set(ins) <= {s for s in ins if c in s}), "")
        if first and first not in ins[0]:  # the axes of the left operand come first in a product
            ins, xs = ins[::-1], xs[::-1]
        (a, b), narrow = ins, out
        while (pair := _inseparable((a, b, narrow))) is not None:
            a, b, narrow = (s.replace(pair, pair[0]) for s in (a, b, narrow))
            sizes[pair[0]] *= sizes[pair[1]]
        x, y = (xp.reshape(v, tuple(sizes[c] for c in s)) for v, s in zip(xs, (a, b), strict=True))
        shape = tuple(_size(c, ins, xs) for c in out)
        return xp.reshape(contract(xp, f"{a},{b}->{narrow}", self.dtype, x, y), shape)

    def vjp(self, gradient: Tensor, result: Tensor, *xs: Tensor) -> Cotangents:
        ins, out = self.parts()
        grads = list[Array | None]()
        for k, own in enumerate(ins):
            others = [(a, x) for j, (a, x) in enumerate(zip(ins, xs, strict=True)) if j != k]
            known = set(out).union(*(a for a, _ in others))
            shared = "".join(c for c in own if c in known)
            labels = ",".join([out, *(a for a, _ in others)]) + "->" + shared
            d = gradient.apply(replace(self, labels=labels), gradient, *(x for _, x in others))
            if shared != own:
                sizes = tuple(xs[k].shape[own.index(c)] for c in own if c not in known)
                d = d.apply(Expand(labels=f"{shared}->{own}", sizes=sizes), d)
            dtype = xs[k].type.dtype
            grads.append(d.cast(dtype) if is_float(dtype) and d.type.dtype != dtype else d)
        return tuple(grads)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        ins, out = self.parts()
        new = add_label(ins, out, flags, last)
        if not new:  # all operands equal the result: einsum still needs its labels
            c = next(c for c in "zyxwvu" if c not in out)
            *own, result = ((s + c if last else c + s) for s in (*ins, out))
            new = f"{','.join(own)}->{result}"
        return replace(self, labels=new)
