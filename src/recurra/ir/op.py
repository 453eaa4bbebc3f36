"""Op: the base class of primitives. Families implement what their ops have in common.

| method | used by |
|---|---|
| `infer`  result type from operand types         | builder, verifier |
| `eval`   result, on any array namespace         | oracle, backends |
| `vjp`    cotangents, as tensors of the program  | autodiff |
| `batch`  the op with one more axis              | vectorize |
| `monoid` the op that joins partial results      | incrementalize, reductions_to_accumulators |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Self, dataclass_transform

from recurra.ir.array_protocols import ArrayNamespace
from recurra.ir.expr import Env, Expr, evaluate, substitute, symbols
from recurra.ir.types import AnyType, Type, accumulator, is_float
from recurra.ir.user_objects import Resource

Array = Any


@dataclass_transform(frozen_default=True)
class Op:
    """The interface of a primitive, as passes use it. Subclasses are frozen dataclasses, registered
    by name.

    Methods take `*xs, **_`, so that an op may name its operands: its arity is its signature.
    """

    registry: ClassVar[dict[str, type[Op]]] = {}
    abstract: ClassVar[bool] = True
    monoid: ClassVar[str | None] = None  # the elementwise op that joins partial results
    pure: ClassVar[bool] = True  # may be duplicated, merged, dropped
    drawn: ClassVar[bool] = False  # reads the seed of the run
    name: ClassVar[str] = "op"
    held: ClassVar[Mapping[str, type[Resource[Any]]]] = MappingProxyType({})  # by attribute

    def __init_subclass__(cls, abstract: bool = False, name: str | None = None) -> None:
        dataclass(frozen=True, repr=False)(cls)
        cls.abstract = abstract
        cls.name = name or cls.__name__.lower()
        if not abstract:
            assert cls.name not in Op.registry, f"two ops are called {cls.name}"
            Op.registry[cls.name] = cls

    def infer(self, *xs: Any, **_: Any) -> AnyType:
        """The result type; raises TypeError when the operands do not fit."""
        raise NotImplementedError

    def eval(self, xp: ArrayNamespace, *xs: Any, **_: Any) -> Array:
        """Compute the result with the array namespace `xp`."""
        raise NotImplementedError

    def run(self, xp: ArrayNamespace, env: Env, *xs: Any, **_: Any) -> Array:
        """Evaluate at a point; only symbolic ops look at `env`."""
        return self.eval(xp, *xs)

    def vjp(self, gradient: Any, result: Any, *xs: Any, **_: Any) -> tuple[Any, ...]:
        """The cotangents of `xs`, from that of the result; None for operands without one.

        In formulas of operators y is the result, x, or a and b, the operands, g the gradient.
        """
        return (None,) * len(xs)

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self | None:
        """The op when flagged operands, and the result, gain one axis, first or last.

        None: the op cannot have operands without the axis; the caller expands them and asks again.
        """
        raise NotImplementedError

    def exprs(self) -> Iterator[Expr]:
        """Every index expression among the attributes."""
        for name, _ in _attributes(type(self)):
            yield from _exprs(getattr(self, name))

    def resources(self) -> list[Resource[Any]]:
        """The user's arrays and functions that the op holds."""
        return [getattr(self, name) for name in self.held]

    def mentions(self) -> set[str]:
        """The symbols that occur in the attributes."""
        return set().union(*map(symbols, self.exprs()))

    def at(self, by: Mapping[str, Expr | int]) -> Self:
        """The op with symbols replaced in its attributes."""
        changed = {
            name: new
            for name, _ in _attributes(type(self))
            if (new := _substitute(old := getattr(self, name), by)) != old
        }
        return replace(self, **changed) if changed else self  # pyright: ignore

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.attributes())})"

    def attributes(self) -> list[str]:
        """`key=value` for each attribute that differs from its default."""
        return [f"{name}={show(value)}" for name, value in self._non_defaults()]

    def numbers(self) -> dict[str, float]:
        """The attributes that are real numbers, such as rates, and differ from their defaults."""
        kinds = {f.name: f.type for f in fields(self)}  # pyright: ignore[reportArgumentType]
        return {name: value for name, value in self._non_defaults() if kinds[name] == "float"}

    def with_numbers(self, value: float) -> Self:
        """Replace all of `numbers` by one number."""
        changed = dict.fromkeys(self.numbers(), value)
        return replace(self, **changed) if changed else self  # pyright: ignore

    def _non_defaults(self) -> Iterator[tuple[str, Any]]:
        for name, default in _attributes(type(self)):
            if (value := getattr(self, name)) != default:
                yield name, value


@cache
def _attributes(kind: type[Op]) -> tuple[tuple[str, object], ...]:
    """The names and defaults of the attributes, cached: `dataclasses.fields` is slow."""
    return tuple((f.name, f.default) for f in fields(kind))  # pyright: ignore[reportArgumentType]


def show(value: object) -> str:
    """The text of an attribute; expressions are bare, strings are quoted."""
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))}{',' if len(value) == 1 else ''})"
    return str(value) if isinstance(value, Expr) else repr(value)


def _exprs(value: object) -> Iterator[Expr]:
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, tuple):
        for v in value:
            yield from _exprs(v)


def _substitute(value: object, by: Mapping[str, Expr | int]) -> object:
    if isinstance(value, Expr):
        return substitute(value, by)
    return tuple(_substitute(v, by) for v in value) if isinstance(value, tuple) else value


class Elementwise(Op, abstract=True):
    """An op applied element by element; `labels` ("bh,h->bh") name the axes of each operand."""

    labels: str = ""

    def parts(self, ranks: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
        """The labels of the operands and of the result."""
        if self.labels:
            ins, out = self.labels.split("->")
            return tuple(ins.split(",")), out
        axes = LETTERS[: ranks[0]]
        return (axes,) * len(ranks), axes

    def infer(self, *xs: Type) -> Type:
        ins, out = self.parts(tuple(x.rank for x in xs))
        sizes = label_sizes(self.name, ins, xs)
        missing = [c for c in out if c not in sizes]
        if missing:
            raise TypeError(f"{self.name}: no operand has the axis {missing[0]} of {self.labels}")
        return Type(self.dtype(*(x.dtype for x in xs)), tuple(sizes[c] for c in out))

    def dtype(self, *dtypes: str) -> str:
        if len(set(dtypes)) != 1:
            raise TypeError(f"{self.name}: operands have types {', '.join(dtypes)}")
        return dtypes[0]

    def apply(self, xp: ArrayNamespace, *xs: Any, **_: Any) -> Array:
        """Compute the result for operands that broadcast from the right."""
        raise NotImplementedError

    def eval(self, xp: ArrayNamespace, *xs: Array) -> Array:
        if not self.labels:
            return self.apply(xp, *xs)
        ins, out = self.parts(tuple(len(x.shape) for x in xs))
        return self.apply(xp, *(align(xp, x, a, out) for x, a in zip(xs, ins, strict=True)))

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        ins, out = self.parts(ranks)
        return replace(self, labels=add_label(ins, out, flags, last))  # pyright: ignore


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def fresh_label(used: str) -> str:
    return next(c for c in LETTERS[::-1] if c not in used)


def add_label(ins: tuple[str, ...], out: str, flags: tuple[bool, ...], last: bool) -> str:
    """Add a new axis to the flagged operands and the result; "" if all labels are equal."""
    new = fresh_label("".join(ins) + out)
    grow = (lambda s: s + new) if last else (lambda s: new + s)
    return join_labels(
        tuple(grow(s) if f else s for s, f in zip(ins, flags, strict=True)), grow(out)
    )


def join_labels(ins: tuple[str, ...], out: str) -> str:
    return "" if all(s == out for s in ins) else f"{','.join(ins)}->{out}"


def label_sizes(name: str, ins: tuple[str, ...], xs: tuple[Type, ...]) -> dict[str, Expr | int]:
    """The size of every label; raises TypeError when two operands disagree."""
    sizes: dict[str, Expr | int] = {}
    for x, axes in zip(xs, ins, strict=True):
        if len(set(axes)) != len(axes):
            raise TypeError(f"{name}: labels {axes!r} name an axis of one operand twice")
        if len(axes) != x.rank:
            raise TypeError(
                f"{name}: operand {x} has {x.rank} axes, its labels {axes!r} name {len(axes)}"
            )
        for c, n in zip(axes, x.shape, strict=True):
            if sizes.setdefault(c, n) != n:
                raise TypeError(
                    f"{name}: axis {c} has size {sizes[c]} in one operand and {n} in {x}"
                )
    return sizes


def align(xp: ArrayNamespace, array: Array, axes: str, out: str) -> Array:
    """Permute the axes of `array` into the order of `out`, with size-1 axes for missing labels."""
    if out.endswith(axes):
        return array
    order = sorted(range(len(axes)), key=lambda k: out.index(axes[k]))
    if order != list(range(len(axes))):
        array = xp.permute_dims(array, tuple(order))
    shape = iter(array.shape)
    return xp.reshape(array, tuple(next(shape) if c in axes else 1 for c in out))


class Numeric(Elementwise, abstract=True):
    """An elementwise op on numbers only: truth values have no difference and no sign."""

    def dtype(self, *dtypes: str) -> str:
        found = super().dtype(*dtypes)
        if found == "bool":
            raise TypeError(f"{self.name}: the operand has type bool; cast it, or use ~ & |")
        return found


class Floating(Elementwise, abstract=True):
    """An elementwise op on floats only: an integer would silently become a float."""

    def dtype(self, *dtypes: str) -> str:
        return floating(self.name, super().dtype(*dtypes))


def floating(name: str, dtype: str) -> str:
    if not is_float(dtype):
        raise TypeError(f"{name}: the operand has type {dtype}, not a float")
    return dtype


def summable(name: str, dtype: str) -> str:
    """The element type of a sum; raises TypeError if the type of its terms is too narrow."""
    if accumulator(dtype) != dtype:
        raise TypeError(f"{name}: sums of {dtype} are {accumulator(dtype)}; cast the operand first")
    return dtype


class Reduction(Op, abstract=True):
    """An op that reduces over the axes `axes`."""

    axes: tuple[int, ...]

    def infer(self, operand: Type) -> Type:
        if len(set(self.axes)) != len(self.axes) or not all(
            0 <= a < operand.rank for a in self.axes
        ):
            raise TypeError(f"{self.name}: {operand} has no axes {self.axes}")
        return Type(
            operand.dtype, tuple(s for a, s in enumerate(operand.shape) if a not in self.axes)
        )

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self:
        return self if last else replace(self, axes=tuple(a + 1 for a in self.axes))  # pyright: ignore


class Axis(Op, abstract=True):
    """An op that works along one axis of its operands and keeps the others."""

    axis: int

    def infer(self, operand: Type) -> Type:
        if not 0 <= self.axis < operand.rank:
            raise TypeError(f"{self.name}: {operand} has no axis {self.axis}")
        return operand

    def batch(self, flags: tuple[bool, ...], ranks: tuple[int, ...], last: bool) -> Self | None:
        if not all(flags):
            return None
        return self if last else replace(self, axis=self.axis + 1)  # pyright: ignore


class Symbolic(Op, abstract=True):
    """An op that reads the values of dims; `bind` lists (dim, size, axis) of those that are axes
    of the result."""

    def run(self, xp: ArrayNamespace, env: Env, *xs: Any, **_: Any) -> Array:
        return self.eval_at(xp, self.bound(xp, env), *xs)

    def eval_at(self, xp: ArrayNamespace, env: Env, *xs: Any, **_: Any) -> Array:
        raise NotImplementedError

    def bound(self, xp: ArrayNamespace, env: Env) -> Any:
        """Extend `env` with an arange for each bound dim, along its axis."""
        bind: tuple[tuple[str, Any, int], ...] = getattr(self, "bind", ())
        if not bind:
            return env
        rank = self.rank()
        out = dict(env)
        for dim, size, axis in bind:
            shape = tuple(-1 if k == axis else 1 for k in range(rank))
            out[dim] = xp.reshape(xp.arange(evaluate(size, env), dtype="int32"), shape)
        return out

    def rank(self) -> int:
        """The rank of the result."""
        raise NotImplementedError

    def batch_symbol(self, dim: str, size: Any, last: bool) -> Self:
        """The op when `dim`, read by its attributes, becomes an axis of the result."""
        raise NotImplementedError
