"""Element types, tensor types, and the domains of tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NoReturn

import ml_dtypes  # noqa: F401  # pyright: ignore[reportUnusedImport]  # NumPy knows bfloat16 by it
import numpy as np

from recurra.errors import RecurraError
from recurra.ir.expr import NONE, Env, Expr, Lin, Sym, between, evaluate, lin, substitute, symbols
from recurra.ir.frozen import Frozen

NUMPY_NAME = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "u32": "uint32",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
}
SHORT_NAME = {v: k for k, v in NUMPY_NAME.items()}
WIDTH = {short: np.dtype(name).itemsize for short, name in NUMPY_NAME.items()}
_ORDER = ("bool", "u8", "i8", "u32", "i32", "i64", "bf16", "f16", "f32", "f64")
_INTEGER = {"u8": (0, 8), "i8": (-7, 7), "u32": (0, 32), "i32": (-31, 31), "i64": (-63, 63)}


def is_float(dtype: str) -> bool:
    return dtype in ("f64", "f32", "bf16", "f16")


def is_floating(dtype: np.dtype) -> bool:
    """Is it a float of NumPy, or bfloat16, which NumPy does not count among them?"""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def join(left: str, right: str) -> str:
    """The promoted element type of two operands; an integer never widens a float."""
    return next(to for to in _ORDER if _can_hold(to, left) and _can_hold(to, right))


def _can_hold(to: str, dtype: str) -> bool:
    """Is `dtype` promoted to `to` in an operation with it? u8 to i32, but not to i8."""
    if to == dtype or dtype == "bool":
        return True
    if is_float(to):
        return not is_float(dtype) or WIDTH[to] > WIDTH[dtype]
    if to == "bool" or is_float(dtype):
        return False
    (low, high), (least, most) = _INTEGER[to], _INTEGER[dtype]
    return low <= least and most <= high


def is_wide(dtype: object) -> bool:
    """Do numbers of this type, or of NumPy's type of this name, have 64 bits?"""
    return str(dtype) in ("f64", "i64", "float64", "int64")


def accumulator(dtype: str) -> str:
    """The type of a sum: i32 for Booleans and integers below 32 bits, else that of its terms.

    i32 is the default integer type here (in the sense of the array API).
    """
    return "i32" if not is_float(dtype) and WIDTH[dtype] < WIDTH["i32"] else dtype


@dataclass(frozen=True)
class Type:
    """The dtype and shape of one array; sizes are ints or expressions, of dims if it is ragged."""

    dtype: str
    shape: tuple[Expr | int, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        """The type as users write it: rc.f32[4,B]."""
        name = "boolean" if self.dtype == "bool" else self.dtype
        return f"rc.{name}[{','.join(map(str, self.shape)) or '()'}]"

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise RecurraError.at_user_line(
            "x.type is the type of x, and changes nothing",
            facts=f"this one is {self!r}",
            hint='write x.cast("f32")',
        )

    @property
    def rank(self) -> int:
        return len(self.shape)

    def mentions(self) -> frozenset[str]:
        """The symbols that occur in the sizes."""
        return NONE.union(*(s.symbols for s in self.shape if isinstance(s, Expr)))

    def at(self, by: Mapping[str, Expr | int]) -> Type:
        return Type(self.dtype, tuple(substitute(s, by) for s in self.shape))

    def sizes(self, env: Env) -> tuple[int, ...]:
        return tuple(evaluate(s, env) for s in self.shape)

    def nbytes(self, env: Env) -> int:
        return WIDTH[self.dtype] * prod(self.sizes(env))


@dataclass(frozen=True)
class Tuple:
    """The type of the results of a host call."""

    items: tuple[Type, ...]
    dtype: str = field(default="tuple", init=False)
    shape: tuple[Expr | int, ...] = field(default=(), init=False)

    def mentions(self) -> frozenset[str]:
        """The symbols that occur in the sizes: none, as there are no axes."""
        return NONE

    def at(self, by: Mapping[str, Expr | int]) -> Tuple:
        return Tuple(tuple(x.at(by) for x in self.items))

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


AnyType = Type | Tuple


@dataclass(frozen=True)
class Range(Frozen):
    """lo <= dim < hi"""

    dim: str
    hi: Expr | int
    lo: Expr | int = 0

    def __str__(self) -> str:
        return f"{self.dim}<{self.hi}" if self.lo == 0 else f"{self.lo}<={self.dim}<{self.hi}"

    @cached_property
    def sym(self) -> Sym:
        return Sym(self.dim)

    def size(self, env: Env) -> int:
        return max(0, evaluate(self.hi, env) - evaluate(self.lo, env))

    @cached_property
    def is_point(self) -> bool:
        """Has it exactly one point, whatever the bounds?"""
        return lin([(self.hi, 1), (self.lo, -1)]) == 1

    @cached_property
    def edges(self) -> tuple[Expr, Expr]:
        """lo <= dim and dim < hi."""
        return between(self.sym, self.lo, self.hi)

    def at(self, by: Mapping[str, Expr | int]) -> Range:
        return Range(self.dim, substitute(self.hi, by), substitute(self.lo, by))

    def mentions(self) -> frozenset[str]:
        """The symbols that occur in its ends: bounds, and dims before it (tj < t//8+1)."""
        return symbols(self.lo) | symbols(self.hi)


@dataclass(frozen=True)
class Domain(Frozen):
    """The points of an equation: one range per dim, in the order the dims were declared.

    A box, except for ranges whose ends mention dims before them: t<T, tj<t//8+1.
    """

    ranges: tuple[Range, ...] = ()

    def __str__(self) -> str:
        return f"[{','.join(map(str, self.ranges))}]" if self.ranges else ""

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    def __contains__(self, dim: str) -> bool:
        return dim in self.dims

    def __getitem__(self, dim: str) -> Range:
        return self.ranges[self.dims.index(dim)]

    @cached_property
    def dims(self) -> tuple[str, ...]:
        return tuple(r.dim for r in self.ranges)

    @cached_property
    def identity(self) -> tuple[Expr, ...]:
        return tuple(r.sym for r in self.ranges)

    def at(self, by: Mapping[str, Expr | int]) -> Domain:
        """The domain with symbols replaced in the ends of its ranges."""
        return Domain(tuple(r.at(by) for r in self.ranges))

    def without(self, *dims: str) -> Domain:
        return Domain(tuple(r for r in self.ranges if r.dim not in dims))

    def with_range(self, new: Range) -> Domain:
        """Replace the range of one dim."""
        return Domain(tuple(new if r.dim == new.dim else r for r in self.ranges))

    def point(self, dim: str, expr: Expr | int) -> tuple[Expr | int, ...]:
        """The identity index with `expr` for one dim."""
        return tuple(expr if r.dim == dim else r.sym for r in self.ranges)

    def of(self, dims: Iterable[str]) -> Domain:
        """The ranges of some dims, and of the dims that the ends of these mention."""
        used = set(dims)
        for r in reversed(self.ranges):
            if r.dim in used:
                used |= r.mentions()
        return Domain(tuple(r for r in self.ranges if r.dim in used))

    def points(self, env: Env, along: Collection[str] | None = None) -> int:
        """The number of points, of all dims or along some; the ends must not mention dims."""
        return prod(r.size(env) for r in self.ranges if along is None or r.dim in along)

    def mentions(self) -> set[str]:
        """The dims and bounds that its ends depend on."""
        return set[str]().union(*(r.mentions() for r in self.ranges))


def is_shift(expr: object, dim: str) -> int | None:
    """The constant c if `expr` is dim + c, else None."""
    if isinstance(expr, Sym) and expr.name == dim:
        return 0
    match expr:
        case Lin(terms=((Sym(name=name), 1),), const=const) if name == dim:
            return const
        case _:
            return None
