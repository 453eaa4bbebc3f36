"""Stand-ins for arrays: they have a type and no numbers, and write operations on them down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from recurra.backends.bounded_int import Count
from recurra.backends.numpy.small_arrays import padded

OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "bitwise_xor": "^",
    "bitwise_or": "|", "bitwise_and": "&", "left_shift": "<<", "less": "<", "less_equal": "<=",
    "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!=",
}  # fmt: skip
REDUCTIONS = {
    np.sum: np.add, np.prod: np.multiply, np.max: np.maximum, np.min: np.minimum,
    np.any: np.logical_or, np.all: np.logical_and,
}  # fmt: skip
# Functions whose results always have memory of their own.
NEW = {np.where, np.take, np.concatenate, padded, np.sort, np.argsort, np.cumsum, np.cumprod}


class NeedsRuntimeValue(TypeError):
    """An operator needs a value that is known at run time only."""


class Source(Protocol):
    """The writer of the operations on stand-ins."""

    def atom(self, value: Any) -> str: ...
    def key(self, key: Any) -> str: ...
    def function(self, func: Any) -> str: ...
    def emit_result(
        self, text: str, func: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any: ...
    def emit_call(
        self,
        name: str,
        func: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any],
        *mine: StandIn,
    ) -> Any: ...


class StandIn(NDArrayOperatorsMixin):
    """An array of the source, called `name`; `like` has its type and no memory.

    `memory` names the arrays whose memory it may share.
    """

    def __init__(self, writer: Source, name: str, like: Any, memory: Iterable[str] = ()) -> None:
        self.writer, self.name, self.like = writer, name, like
        self.memory = frozenset(memory) or frozenset({name})

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.like)

    @property
    def ndim(self) -> int:
        return np.ndim(self.like)

    @property
    def size(self) -> int:
        return int(np.size(self.like))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.like.dtype

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **options: Any) -> Any:
        if "out" in options or method not in ("__call__", "reduce", "accumulate"):
            raise NeedsRuntimeValue(f"{ufunc.__name__}.{method} changes an array")
        name = ufunc.__name__
        if method == "__call__" and name in OPERATORS and not options:
            text = f" {OPERATORS[name]} ".join(map(self.writer.atom, args))
            return self.writer.emit_result(text, ufunc, args, {})
        whole = self.writer.function(ufunc) + ("" if method == "__call__" else f".{method}")
        return self.writer.emit_call(whole, getattr(ufunc, method), args, options)

    def __array_function__(self, func: Any, types: Any, args: Any, options: Any) -> Any:
        if func in REDUCTIONS and len(args) == 1:  # the reduction that NumPy calls itself
            return REDUCTIONS[func].reduce(*args, **{"axis": None, **options})
        return self.writer.emit_call(self.writer.function(func), func, args, options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(np.ndarray, name)
        if not callable(method) or name.startswith("_"):
            raise NeedsRuntimeValue(f"{name} of an array")

        def call(*args: Any, **options: Any) -> Any:
            return self.writer.emit_call(f"{self.name}.{name}", method, args, options, self)

        return call

    def __getitem__(self, key: Any) -> Any:
        text = self.writer.key(key)
        return self.writer.emit_result(
            f"{self.name}[{text}]", np.ndarray.__getitem__, (self, key), {}
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        raise NeedsRuntimeValue("an array is changed")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise NeedsRuntimeValue("numbers of an array")

    def _number(self) -> Any:
        raise NeedsRuntimeValue("a number of an array")

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = _number
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]


def infer_result(func: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """A blank array or a value of the type of a function's result.

    An elementwise function is called with a single number of each operand.
    """
    if isinstance(func, np.ufunc) and not func.signature and not options:
        shapes = [np.shape(plain(x)) for x in args]
        few = [plain(x) if not shape else plain(x)[(slice(0, 1),) * len(shape)]
               for x, shape in zip(args, shapes, strict=True)]  # fmt: skip
        few = [x if not np.shape(x) or np.size(x) else np.zeros((1,) * np.ndim(x), x.dtype)
               for x in few]  # fmt: skip
        result = func(*few)
        shape = np.broadcast_shapes(*shapes)
        return result if not shape else zero_array(shape, result.dtype)
    return func(*map(plain, args), **{k: plain(x) for k, x in options.items()})


def possible_bases(func: Callable[..., Any], args: Any) -> frozenset[str]:
    """The arrays whose memory a function's result may share; none if it is always new."""
    is_ufunc = isinstance(func, np.ufunc) or isinstance(getattr(func, "__self__", None), np.ufunc)
    is_product = func is np.einsum and len(args) > 2
    if is_ufunc or is_product or func in NEW:
        return frozenset()
    return frozenset[str]().union(*(x.memory for x in stand_ins(args)))


def stand_ins(tree: Any) -> Iterator[StandIn]:
    """All stand-ins in nested tuples and lists."""
    if isinstance(tree, StandIn):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for y in cast("Sequence[Any]", tree):
            yield from stand_ins(y)


def plain(value: Any) -> Any:
    """Replace stand-ins and counted numbers by arrays and numbers of their types."""
    match value:
        case StandIn():
            return value.like
        case Count():
            first, last = value.range
            return bool(first) if value.truth else min(max(first, 0), last)
        case slice():
            return slice(plain(value.start), plain(value.stop), plain(value.step))
        case tuple() | list():
            return type(value)(map(plain, value))
        case _:
            return value


def zero_array(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of a type without memory: all elements are the same zero."""
    return np.broadcast_to(np.zeros((), dtype), tuple(shape))


def as_zero_array(array: Any) -> Any:
    """A blank array of the same type."""
    return (
        zero_array(array.shape, array.dtype)
        if isinstance(array, (np.ndarray, np.generic))
        else array
    )
