"""Construction of tensors from Python values, broadcasting, and type promotion."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from recurra.analysis.graph_builder import current
from recurra.errors import ShapeError, here
from recurra.frontend.dtype_objects import Dtype, dtype_name
from recurra.frontend.index_arguments import BareIndex, is_condition
from recurra.frontend.tensor_base import Operand, Read, Tensor
from recurra.ir.expr import Expr, Sym, compare, symbols
from recurra.ir.graph import Slice
from recurra.ir.op import LETTERS, Elementwise, Floating, Op, join_labels
from recurra.ir.types import NUMPY_NAME, SHORT_NAME, Type, accumulator, is_float, join
from recurra.ir.value_conversion import array_of, fitted
from recurra.ops import elementwise as el
from recurra.ops import reduction
from recurra.ops.movement import Cut
from recurra.ops.scan import CumSum
from recurra.ops.source import Const, Data, Value
from recurra.polyhedral import isl

_NARROW = {"float64": "f32", "int64": "i32"}  # the default types of arrays of 64 bits


def convert(kind: type[Tensor], x: object, dtype: str | Dtype | None = None) -> Tensor:
    """Convert a number, an index expression or an array to a tensor; a tensor is returned as is."""
    if isinstance(x, kind):
        return x
    builder, dtype = current(), dtype and dtype_name(dtype)
    dims: set[str] = set()
    if isinstance(x, BareIndex) and x.constant is not None:
        x = x.constant
    if isinstance(x, BareIndex):
        op: Op = Value(expr=x.expr, dtype="bool" if is_condition(x.expr) else dtype or "i32")
        dims = op.mentions() & set(builder.dim_names())
        stem = "value"
    elif getattr(x, "ndim", 0) == 0 and isinstance(value := _python(x), (bool, int, float)):
        to = dtype or _weak_type(value)
        fitted(value, to, "the number", hint=_other_type(value, to), loc=here())
        op, stem = Const(value=value, dtype=to), "const"
    else:
        op, stem = Data(key=builder.constant(_array(x, dtype))), "data"
    node = builder.emit(op, (), builder.domain(dims), stem)
    return kind(builder, node.ref)


def _expect_no_list(value: object) -> None:
    """Raise ShapeError for a list that contains tensors."""
    if isinstance(value, (list, tuple)) and any(isinstance(y, Read) for y in value):
        written = ", ".join(y.called if isinstance(y, Read) else str(y) for y in value)
        raise ShapeError.at_user_line(
            "a list of tensors is no tensor",
            facts=f"it is [{written}]",
            hint=f"write rc.stack([{written}])",
        )


def _array(value: object, dtype: str | None) -> np.ndarray:
    no_number = value is None or array_of(value, "the constant", here()).dtype.kind in "OUSV"
    to = array_type(value) if dtype is None or no_number else dtype
    # a copy, as the caller may write to the array later
    return np.array(fitted(value, to, "the constant", hint=_other_type(value, to), loc=here()))


def array_type(x: object) -> str:
    """The default element type of a tensor made from an array; raises ShapeError if none fits."""
    if x is None:
        raise ShapeError.at_user_line(
            "None is no tensor",
            facts="x.grad is None before backward(), and where the loss does not depend on x",
            hint="write `x is None` to ask for it, or call backward(wrt=[x]) of a loss that x is "
            "part of",
        )
    array = array_of(x, "the constant", here())
    found = _NARROW.get(array.dtype.name) or SHORT_NAME.get(array.dtype.name)
    if found is None:
        draws = hasattr(x, "sample")  # a distribution
        raise ShapeError.at_user_line(
            f"{type(x).__name__} is no tensor"
            if draws
            else f"no tensor has the type {array.dtype}",
            facts=f"of {x!r}" if not draws else "it is a distribution, of which values are drawn",
            hint="draw one: pi = dnn(o), a = pi.sample(), env.step(a)"
            if draws
            else "a tensor holds numbers, or truth values",
        )
    return found


def _other_type(value: object, dtype: str) -> str:
    """The hint for a constant that does not fit a type."""
    if array_of(value).dtype.kind in "fc":
        more = 'rc.constant(x, "f64") holds more'
        cut = '; what is to be cut off: rc.constant(x).cast("i32")'
        return more if is_float(dtype) else more + cut
    return 'rc.constant(x, "i64") holds whole numbers of 64 bits'


def _python(value: object) -> object:
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value


def _weak_type(value: object) -> str:
    return "bool" if isinstance(value, bool) else "i32" if isinstance(value, int) else "f32"


def zeros(type_: Type) -> Const:
    return Const(value=0.0 if is_float(type_.dtype) else 0, dtype=type_.dtype, shape=type_.shape)


def pointwise(kind: type[Tensor], op: type[Elementwise], *xs: object) -> Tensor:
    """Apply an elementwise op, with operands broadcast from the right and promoted to one type."""
    if issubclass(op, el.Where):
        tensors = [convert(kind, xs[0]), *promote(kind, *xs[1:])]
    elif issubclass(op, Floating):
        tensors = list(map(as_float, promote(kind, *xs)))
    else:
        tensors = promote(kind, *xs)
    rank = max(len(x.shape) for x in tensors)
    widest = _common_shape(op, tensors, rank)
    for k, x in enumerate(tensors):
        for axis, c in enumerate(LETTERS[rank - len(x.shape) : rank]):
            tensors[k] = with_size(tensors[k], axis, widest[c])
    ins: list[str] = []
    for k, x in enumerate(tensors):
        axes = LETTERS[rank - len(x.shape) : rank]
        ones = tuple(a for a, c in enumerate(axes) if x.shape[a] == 1 and widest[c] != 1)
        tensors[k] = squeezed(x, ones)  # they broadcast
        ins.append("".join(c for a, c in enumerate(axes) if a not in ones))
    labels = join_labels(tuple(ins), LETTERS[:rank])
    return tensors[0].apply(op(labels=labels), *tensors)


def squeezed(x: Tensor, ones: tuple[int, ...]) -> Tensor:
    """Drop axes of size 1."""
    if not ones:
        return x
    is_summed = accumulator(x.dtype) == x.dtype
    drop = reduction.Sum if is_summed else reduction.Max
    return x.apply(drop(axes=ones), x)


def as_float(x: Tensor) -> Tensor:
    """Cast integers and truth values to f32; leave floats as they are."""
    return x if is_float(x.dtype) else x.cast("f32")


def positions(kind: type[Tensor], size: Expr | int) -> Tensor:
    """The vector 0, 1, .. size - 1 (i32); for a symbolic size, a running sum of ones."""
    if isinstance(size, int):
        return convert(kind, np.arange(size))
    builder, op = current(), Const(value=1, dtype="i32", shape=(size,))
    over = builder.domain(op.mentions() & set(builder.dim_names()))
    one = builder.emit(op, (), over, "one")
    ones = kind(builder, one.ref)
    return ones.apply(CumSum(axis=0), ones) - 1


def logical(
    kind: type[Tensor], op: type[Elementwise], bits: type[Elementwise], *xs: object
) -> Tensor:
    """Apply `op` to truth values, `bits` to integers."""
    tensors = promote(kind, *xs)
    return pointwise(kind, op if all(x.dtype == "bool" for x in tensors) else bits, *tensors)


_ORDER: dict[type[Elementwise], Callable[[int, int], bool]] = {
    el.Less: operator.lt, el.LessEqual: operator.le,
    el.Equal: operator.eq, el.NotEqual: operator.ne,
}  # fmt: skip


def comparison(kind: type[Tensor], op: type[Elementwise], a: object, b: object) -> Tensor:
    """Compare two operands; a number outside the range of the other's type compares as in NumPy:
    it is less or greater than every value."""
    sides = _outside(a, b), _outside(b, a)
    if any(sides):
        x = b if sides[0] else a
        return pointwise(kind, el.Equal if _ORDER[op](*sides) else el.NotEqual, x, x)
    return pointwise(kind, op, a, b)


def _outside(number: object, value: object) -> int:
    """-1 or 1 for an integer below or above the range of a tensor's type, else 0."""
    if (
        type(number) is not int
        or not isinstance(value, Read)
        or value.dtype == "bool"
        or is_float(value.dtype)
    ):
        return 0
    info = np.iinfo(NUMPY_NAME[value.dtype])
    return (number > info.max) - (number < info.min)


def with_slope_of(x: Tensor, other: Callable[[], Tensor]) -> Tensor:
    """`x` with the gradient of the tensor that `other` returns; integers have none."""
    return pointwise(x.kind, el.WithGradient, x, other()) if is_float(x.dtype) else x


def promote(kind: type[Tensor], *xs: object) -> list[Tensor]:
    """Convert operands to one type: that of the tensors, or f32 if those are integers and a number
    is a float."""
    dtype = reduce(join, [t for x in xs if (t := _strong_type(x))] or ["bool"])
    weak = [_weak_kind(x) for x in xs if not _strong_type(x)]
    if "f32" in weak and not is_float(dtype):
        dtype = "f32"
    elif "i32" in weak and dtype == "bool":
        dtype = "i32"
    return [convert(kind, x, dtype).cast(dtype) for x in xs]


def _strong_type(value: object) -> str | None:
    """The element type of a tensor or an array; None for a number, whose type is weak."""
    if isinstance(value, Read):
        return value.dtype
    return array_type(value) if _is_array(value) else None


def cast_to_declared(kind: type[Tensor], name: str, x: object, want: Type) -> Tensor:
    """Cast the value of a branch of `name` to its type; raise ShapeError if that narrows it."""
    have = _strong_type(x) or _weak_kind(x)
    is_number = _strong_type(x) is None
    takes = is_number and (have != "f32" or is_float(want.dtype))
    if takes or join(want.dtype, have) == want.dtype:
        return convert(kind, x, want.dtype).cast(want.dtype)
    raise ShapeError.at_user_line(
        f"a branch of {name} has another type",
        facts=f"{name} is {want}, this branch is {repr(x) if is_number else convert(kind, x).type}",
        hint=f'cut it off by .cast("{want.dtype}"), or declare {name} by rc.like(rc.{have}, ..)',
    )


def _is_array(value: object) -> bool:
    _expect_no_list(value)
    return not isinstance(value, (Read, BareIndex)) and array_of(value).ndim > 0


def _weak_kind(value: object) -> str:
    if isinstance(value, BareIndex):
        return "bool" if is_condition(value.expr) else "i32"
    return _weak_type(_python(value))


def always_equal(a: Expr | int, b: Expr | int) -> bool:
    """Are two sizes equal at every point, as min(N, T-t) and min(N+t, T)-t are?"""
    if a == b or isinstance(a, int) or isinstance(b, int):
        return a == b
    builder = current()
    named = symbols(a) | symbols(b)
    box = builder.domain(named & set(builder.dim_names()))
    bounds = (compare(">=", Sym(n), 1) for n in sorted(named - set(box.dims)))
    return isl.always(compare("==", a, b), box, tuple(bounds))


def with_size(x: Tensor, axis: int, size: Expr | int) -> Tensor:
    """Rewrite the size of an axis of `x` as the equal expression `size`."""
    if 1 in (size, x.shape[axis]) or x.shape[axis] == size:
        return x
    return x.apply(Cut(axis=axis, start=0, size=size), x)


def _common_shape(
    op: type[Elementwise], tensors: Sequence[Operand], rank: int
) -> dict[str, Expr | int]:
    """The size of each axis of the result, by label."""
    sizes: dict[str, Expr | int] = {}
    for x in tensors:
        for c, n in zip(LETTERS[rank - len(x.shape) : rank], x.shape, strict=True):
            known = sizes.get(c, 1)
            if known != 1 and n != 1 and not always_equal(known, n):
                shapes = " and ".join(str(t.type) for t in tensors)
                raise ShapeError.at_user_line(
                    f"{op.name} of {shapes}: sizes {known} and {n} do not match",
                    facts="shapes meet axis by axis from the right",
                    hint=points_for_elements(tensors) or "expand, reshape or transpose one of them",
                )
            sizes[c] = n if known == 1 else known
    return sizes


def points_for_elements(tensors: Sequence[Operand]) -> str:
    """The hint for z[0:4] read as points of a dim where elements of the value were meant."""
    todo = list(tensors)
    while todo:
        x = todo.pop()
        first = x.ref.index[0] if len(x.ref.index) == 1 else None
        if isinstance(first, Slice) and isinstance(first.lo, int) and isinstance(first.hi, int):
            read = x.kind(x.builder, x.ref, indexed=True).called
            whole, dim = read.partition("[")[0], x.graph[x.name].domain.dims[0]
            return (
                f"{read} is points of the dim {dim}, one after the other; elements of the value "
                f"are {whole}[{dim}][{first}]"
            )
        node = x.graph[x.name]
        pointwise = isinstance(node.op, Elementwise) and x.graph.is_identity(x.ref)
        todo += [x.kind(x.builder, a, indexed=True) for a in node.args] if pointwise else []
    return ""
