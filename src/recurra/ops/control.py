"""Merge, which closes recurrences, and ops that call functions: foreign and call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np

from recurra.ir.array_protocols import ArrayNamespace, Cotangents, Tensor
from recurra.ir.expr import Env, Expr, evaluate
from recurra.ir.op import Array, Op
from recurra.ir.types import NUMPY_NAME, Tuple, Type, is_float
from recurra.ir.user_objects import HostFunction, Resource


class Merge(Op):
    """y = the operand whose condition holds; conditions are disjoint and cover the domain"""

    when: tuple[Expr, ...]

    def infer(self, *xs: Type) -> Type:
        if len(self.when) != len(xs):
            raise TypeError(f"merge: {len(xs)} branches have {len(self.when)} conditions")
        if len(set(xs)) != 1:
            raise TypeError(f"merge: branches have types {', '.join(map(str, xs))}")
        return xs[0]

    def arm(self, env: Env) -> int:
        """The operand that is read at a point."""
        return next(k for k, c in enumerate(self.when) if evaluate(c, env))

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self | None:
        return self if all(flags) else None

    def vjp(self, gradient: Tensor, result: Tensor, *xs: Tensor) -> Cotangents:
        return (gradient,) * len(xs)


class Traceable(Protocol):
    """A function of arrays that a backend can trace, or the host can call.

    `vjp(k)`, if it has one, is the function of the operands and the cotangent of result k that
    returns the cotangents of the operands.
    """

    def __call__(
        self, xp: ArrayNamespace, vmaps: tuple[Any, ...], *xs: Array
    ) -> tuple[Array, ...]: ...

    def on_tensors(self, vmaps: tuple[Any, ...]) -> Any: ...

    def shapes(self, vmaps: tuple[Any, ...], xs: Sequence[tuple[tuple[int, ...], str]]) -> Any: ...


RESULTS = "results"  # key of the run-time env: all results of a foreign function, once computed


class Foreign(Op):
    """y = result `out` of a pure traceable function

    `vmaps`: the axes it was mapped over, innermost first: (operands that have it, is last, size).
    """

    held = MappingProxyType({"fn": Resource})
    fn: Resource[Traceable]
    out: int
    dtype: str
    shape: tuple[Expr | int, ...]
    vmaps: tuple[tuple[tuple[bool, ...], bool, Expr | int], ...] = ()

    def infer(self, *xs: Type) -> Type:
        shape = self.shape
        for _, last, size in self.vmaps:
            shape = (*shape, size) if last else (size, *shape)
        return Type(self.dtype, shape)

    def eval(self, xp: ArrayNamespace, *xs: Array) -> Array:
        return self.fn.get()(xp, self.vmaps, *xs)[self.out]

    def run(self, xp: ArrayNamespace, env: Env, *xs: Array, **_: Any) -> Array:
        if RESULTS not in env:
            return self.eval(xp, *xs)
        if not env[RESULTS]:
            env[RESULTS].extend(self.fn.get()(xp, self.vmaps, *xs))
        return env[RESULTS][self.out]

    def vjp(self, gradient: Tensor, result: Tensor, *xs: Tensor) -> Cotangents:
        pullback = getattr(self.fn.get(), "vjp", None)
        if pullback is None or not is_float(self.dtype):
            return (None,) * len(xs)
        fn = Resource[Traceable](f"{self.fn.key}/d{self.out}", pullback(self.out))
        return tuple(
            gradient.apply(Foreign(fn=fn, out=k, dtype=x.dtype, shape=x.shape), *xs, gradient)
            if is_float(x.dtype)
            else None
            for k, x in enumerate(xs)
        )

    def batch_sized(self, flags: tuple[bool, ...], size: Expr | int, last: bool) -> Self:
        return replace(self, vmaps=(*self.vmaps, (flags, last, size)))


class Call(Op):
    """y = the results of a host function; runs exactly once per point, in the order of its token

    The axes of `batch_dims` lead every operand and result. A call for a `group` of rows gets the
    group's first row and size as its first arguments. `lengths` cut padded operands: (operand,
    axis, length, or the operand that is the length). Where operand `if_` is false, the function is
    not called and the results are zeros. Neither `if_` nor lengths are passed to the function.
    """

    pure = False
    held = MappingProxyType({"fn": HostFunction})
    fn: HostFunction
    results: tuple[tuple[str, tuple[Expr | int, ...]], ...]
    batch_dims: tuple[str, ...] = ()
    group: tuple[Expr | int, ...] = ()
    lengths: tuple[tuple[int, int, Expr | int], ...] = ()
    if_: int | None = None

    @property
    def has_state(self) -> bool:
        """Tell whether a call may depend on earlier ones."""
        return not getattr(self.fn.value, "pure", False)

    def infer(self, *xs: Type) -> Tuple:
        return Tuple(tuple(Type(d, s) for d, s in self.results))

    def eval(self, xp: ArrayNamespace, *xs: Array) -> tuple[Array, ...]:
        return tuple(self.fn.get()(*xs))

    @property
    def unseen(self) -> frozenset[int]:
        """The operands that are not passed to the function: lengths, and the condition."""
        lengths = frozenset(n for *_, n in self.lengths if isinstance(n, int))
        return lengths if self.if_ is None else lengths | {self.if_}

    @property
    def is_plain(self) -> bool:
        """Tell whether the function is called with all operands unchanged, at every point."""
        return not self.lengths and not self.group and self.if_ is None

    def run(self, xp: ArrayNamespace, env: Env, *xs: Array) -> tuple[Array, ...]:
        if self.if_ is not None and not bool(xs[self.if_]):
            return tuple(
                np.zeros([evaluate(n, env) for n in shape], NUMPY_NAME[dtype])
                for dtype, shape in self.results
            )
        if self.is_plain:
            return self.eval(xp, *xs)
        operands = list(xs)
        for k, axis, length in self.lengths:
            n = int(xs[length]) if isinstance(length, int) else max(evaluate(length, env), 0)
            operands[k] = operands[k][(*(slice(None),) * axis, slice(n))]
        args = (x for k, x in enumerate(operands) if k not in self.unseen)
        return self.eval(xp, *(evaluate(e, env) for e in self.group), *args)


class Item(Op):
    """y = one of the results of a call"""

    k: int

    def infer(self, operand: Tuple) -> Type:
        return operand.items[self.k]

    def eval(self, xp: ArrayNamespace, operand: Array) -> Array:
        return operand[self.k]
