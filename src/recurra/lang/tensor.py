"""RecurrentTensor: a read of an equation, with the operators of an array library.

`x` reads x at the identity; `x[b, i, t:T]` reads a range, which becomes a leading axis.
Domains are unioned when tensors meet; shapes broadcast from the right, as labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from recurra.errors import DomainError, ShapeError, here
from recurra.ir import expr as ex
from recurra.ir.expr import Expr, symbols
from recurra.ir.graph import Graph, Ref, Slice
from recurra.ir.op import LETTERS, Elementwise, Op, join_labels
from recurra.ir.types import SHORT_NAME, Domain, Range, Type, is_float, is_shift, join
from recurra.lang.dims import Index, is_condition, unwrap, wrap
from recurra.lang.tracer import Tracer, current
from recurra.ops import elementwise as el
from recurra.ops import indexing, movement, reduction, scan, softmax
from recurra.ops.contraction import Einsum
from recurra.ops.source import Const, Data, Value


class RecurrentTensor:
    """A value at every point of `domain`; see the module for what brackets mean."""

    __array_priority__ = 1000

    def __init__(self, tracer: Tracer, ref: Ref, indexed: bool = False):
        self.tracer, self.ref, self.indexed = tracer, ref, indexed

    # ---- what it is

    @property
    def graph(self) -> Graph:
        return Graph(self.tracer.nodes, ())

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def type(self) -> Any:
        return self.graph.read_type(self.ref)

    @property
    def shape(self) -> tuple[Expr | int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def domain(self) -> Domain:
        """The dims it varies with; a dim read at the identity keeps its source's range."""
        source = self.graph[self.ref.name].domain
        dims: set[str] = set()
        ranges: dict[str, Range] = {}
        known = set(self.tracer.dim_names())
        for r, e in zip(source, self.ref.index, strict=True):
            parts = (e.lo, e.hi) if isinstance(e, Slice) else (e,)
            mentioned = set().union(*map(symbols, parts)) & known
            dims |= mentioned
            for d in mentioned:
                if not isinstance(e, Slice) and r.dim == d and is_shift(e, d) == 0:
                    ranges[d] = r
        return self.tracer.domain(dims, ranges)

    def __repr__(self) -> str:
        dims = ", ".join(self.domain.dims)
        return f"{self.type} over ({dims})" if dims else str(self.type)

    def __hash__(self) -> int:
        return hash(self.ref)

    def __bool__(self) -> bool:
        raise DomainError(
            "a recurrent tensor has no truth value while the program is written",
            facts=f"this one is {self!r}",
            hint="choose with rc.where(cond, a, b)",
            loc=here(),
        )

    def __iter__(self) -> Any:
        raise TypeError(f"{self!r} cannot be iterated over while the program is written")

    # ---- indexing

    def __getitem__(self, key: Any) -> RecurrentTensor:
        keys = key if isinstance(key, tuple) else (key,)
        source = self.graph[self.ref.name].domain
        if self.indexed or not len(source):
            return self._spatial(keys)
        if len(keys) != len(source):
            raise DomainError(
                f"{self.name} is indexed with {len(keys)} expressions",
                facts=f"its domain is {source}, with {len(source)} dims",
                hint=f"index every dim: {self.name}[{', '.join(source.dims)}]",
                loc=here(),
            )
        index = tuple(_index(k, r) for k, r in zip(keys, source, strict=True))
        return RecurrentTensor(self.tracer, Ref(self.ref.name, index), indexed=True)

    def _spatial(self, keys: tuple[Any, ...]) -> RecurrentTensor:
        out, axis = self, 0
        for k in keys:
            if isinstance(k, slice):
                if k != slice(None):
                    lo = 0 if k.start is None else unwrap(k.start)
                    size = (out.shape[axis] if k.stop is None else unwrap(k.stop)) - lo
                    out = out.apply(movement.Cut(axis=axis, start=lo, size=size), out)
                axis += 1
            elif isinstance(k, RecurrentTensor):
                out = out.take(k, axis=axis)
                axis += len(k.shape)
            else:
                out = out.index(k, axis=axis)
        return out

    def __setitem__(self, key: Any, value: Any) -> None:
        node = self.graph[self.ref.name]
        value = as_tensor(value, node.type.dtype).broadcast_to(node.type.shape)
        keys = key if isinstance(key, tuple) else (key,)
        conditions: list[Expr] = [e for k in keys if is_condition(e := unwrap(k))]
        places = [unwrap(k) for k in keys if not is_condition(unwrap(k))]
        if not places:
            places = list(node.domain.identity)
        if len(places) != len(node.domain):
            raise DomainError(
                f"{self.name} is defined at {len(places)} expressions",
                facts=f"its domain is {node.domain}",
                hint=f"write {self.name}[{', '.join(node.domain.dims)}] = ...",
                loc=here(),
            )
        back: dict[str, Expr | int] = {}
        for r, e in zip(node.domain, places, strict=True):
            c = is_shift(e, r.dim)
            if c is None:
                if symbols(e) & set(self.tracer.dim_names()):
                    raise DomainError(
                        f"{self.name} cannot be defined at {e}",
                        facts=f"the place of dim {r.dim} must be {r.dim}, {r.dim}+c, or free of dims",
                        loc=here(),
                    )
                conditions.append(ex.compare("==", r.sym, e))
            elif c:
                # x[t+1] = e is x[t] = e[t-1], wherever t-1 is a point of e
                back[r.dim] = r.sym - c
                edge = value.domain[r.dim] if r.dim in value.domain else r
                if c > 0:
                    conditions.append(ex.compare(">=", r.sym, edge.lo + c))
                else:
                    conditions.append(ex.compare("<", r.sym, edge.hi + c))
        extra = set(value.domain.dims) - set(node.domain.dims)
        if extra:
            raise DomainError(
                f"{self.name} is defined by a value that varies with {', '.join(sorted(extra))}",
                facts=f"{self.name} has the domain {node.domain}, the value {value.domain}",
                hint="add the dim to its domain, or index the value",
                loc=here(),
            )
        self.tracer.define(self.ref.name, ex.both(*conditions), value.ref.at(back))

    # ---- building

    def apply(self, op: Op, *args: RecurrentTensor) -> RecurrentTensor:
        """A new equation over the union of the operands' domains."""
        domain = _union(self.tracer, args, op)
        node = self.tracer.emit(op, tuple(a.ref for a in args), domain, op.name)
        return RecurrentTensor(self.tracer, self.graph.read(node.name))

    def _elementwise(self, op: type[Elementwise], *others: Any) -> RecurrentTensor:
        return elementwise(op, self, *others)

    def __add__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Add, o)

    def __sub__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Sub, o)

    def __mul__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Mul, o)

    def __truediv__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Div, self if is_float(self.dtype) else self.cast("f32"), o)

    def __pow__(self, o: Any) -> RecurrentTensor:
        return self.square() if type(o) is int and o == 2 else self._elementwise(el.Pow, o)

    def __mod__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Mod, o)

    def __radd__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Add, o, self)

    def __rsub__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Sub, o, self)

    def __rmul__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Mul, o, self)

    def __rtruediv__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Div, o, self)

    def __rpow__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Pow, o, self)

    def __neg__(self) -> RecurrentTensor:
        return self._elementwise(el.Neg)

    def __eq__(self, o: object) -> Any:
        return self._elementwise(el.Equal, o)

    def __ne__(self, o: object) -> Any:
        return self._elementwise(el.NotEqual, o)

    def __lt__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Less, o)

    def __le__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.LessEqual, o)

    def __gt__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.Less, o, self)

    def __ge__(self, o: Any) -> RecurrentTensor:
        return elementwise(el.LessEqual, o, self)

    def __and__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.And, o)

    def __or__(self, o: Any) -> RecurrentTensor:
        return self._elementwise(el.Or, o)

    def __invert__(self) -> RecurrentTensor:
        return self._elementwise(el.Not)

    def __matmul__(self, o: RecurrentTensor) -> RecurrentTensor:
        """Contracts the last axis of `self` with the first but one (or the only) of `o`; no batching."""
        o = as_tensor(o, self.dtype)
        a, b = len(self.shape), len(o.shape)
        k = LETTERS[-1]
        left = LETTERS[: a - 1]
        right = LETTERS[a - 1 : a - 1 + b - 1]
        ins = f"{left}{k},{right[:-1] + k + right[-1:] if b > 1 else k}"
        return self.apply(Einsum(labels=f"{ins}->{left}{right}"), self, o)

    # ---- methods

    def cast(self, dtype: str) -> RecurrentTensor:
        return self if dtype == self.dtype else self._elementwise_with(el.Cast(to=dtype))

    def _elementwise_with(self, op: Op) -> RecurrentTensor:
        return self.apply(op, self)

    def detach(self) -> RecurrentTensor:
        """The same value; no gradient passes."""
        return self._elementwise(el.Detach)

    def exp(self) -> RecurrentTensor:
        return self._elementwise(el.Exp)

    def log(self) -> RecurrentTensor:
        return self._elementwise(el.Log)

    def tanh(self) -> RecurrentTensor:
        return self._elementwise(el.Tanh)

    def sigmoid(self) -> RecurrentTensor:
        return self._elementwise(el.Sigmoid)

    def relu(self) -> RecurrentTensor:
        return elementwise(el.Maximum, self, 0.0)

    def sqrt(self) -> RecurrentTensor:
        return self._elementwise(el.Sqrt)

    def square(self) -> RecurrentTensor:
        return self._elementwise(el.Square)

    def abs(self) -> RecurrentTensor:
        return self._elementwise(el.Abs)

    def sin(self) -> RecurrentTensor:
        return self._elementwise(el.Sin)

    def cos(self) -> RecurrentTensor:
        return self._elementwise(el.Cos)

    def floor(self) -> RecurrentTensor:
        return self._elementwise(el.Floor)

    def clip(self, lo: Any, hi: Any) -> RecurrentTensor:
        return elementwise(el.Minimum, elementwise(el.Maximum, self, lo), hi)

    def _axes(self, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
        rank = len(self.shape)
        every = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
        for a in every:
            if not -rank <= a < rank:
                raise ShapeError(
                    f"there is no axis {a}", facts=f"the tensor is {self!r}", loc=here()
                )
        return tuple(sorted(a % rank for a in every))

    def _reduce(self, op: type[reduction.Reduction], axis: Any) -> RecurrentTensor:
        return self.apply(op(axes=self._axes(axis)), self)

    def sum(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        return self._reduce(reduction.Sum, axis)

    def mean(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        count: Any = 1
        for a in self._axes(axis):
            count = ex.mul(count, self.shape[a])
        return self.sum(axis) / as_tensor(wrap(count), self.dtype)

    def max(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        return self._reduce(reduction.Max, axis)

    def min(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        return self._reduce(reduction.Min, axis)

    def any(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        return self._reduce(reduction.Any_, axis)

    def all(self, axis: int | tuple[int, ...] | None = None) -> RecurrentTensor:
        return self._reduce(reduction.All, axis)

    def argmax(self, axis: int = -1) -> RecurrentTensor:
        return self._reduce(reduction.ArgMax, axis)

    def cumsum(self, axis: int = 0) -> RecurrentTensor:
        return self.apply(scan.CumSum(axis=self._axes(axis)[0]), self)

    def discounted_sum(self, gamma: float, axis: int = 0) -> RecurrentTensor:
        """Σₖ γᵏ x[k] along an axis."""
        return self.apply(scan.DiscountedSum(gamma=float(gamma), axis=self._axes(axis)[0]), self)

    def softmax(self, axis: int = -1) -> RecurrentTensor:
        return self.apply(softmax.Softmax(axis=self._axes(axis)[0]), self)

    def log_softmax(self, axis: int = -1) -> RecurrentTensor:
        return self.apply(softmax.LogSoftmax(axis=self._axes(axis)[0]), self)

    def flip(self, axis: int = 0) -> RecurrentTensor:
        return self.apply(movement.Flip(axis=self._axes(axis)[0]), self)

    def transpose(self, *order: int) -> RecurrentTensor:
        return self.apply(
            movement.Transpose(order=order or tuple(range(len(self.shape)))[::-1]), self
        )

    @property
    def T(self) -> RecurrentTensor:  # noqa: N802
        return self.transpose()

    def reshape(self, *shape: Any) -> RecurrentTensor:
        return self.apply(movement.Reshape(shape=tuple(map(unwrap, shape))), self)

    def index(self, at: Any, axis: int = 0) -> RecurrentTensor:
        """Element `at` (a number or an index expression) of an axis; 0 where it falls outside."""
        at, (axis,) = unwrap(at), self._axes(axis)
        if type(at) is int and at < 0:
            at = self.shape[axis] + at
        return self.apply(indexing.Pick(axis=axis, at_=at), self)

    def take(self, i: RecurrentTensor, axis: int = 0) -> RecurrentTensor:
        """Elements along an axis by data; the axes of `i` take its place."""
        (axis,) = self._axes(axis)
        full = LETTERS[: len(self.shape)]
        new = LETTERS[len(full) : len(full) + len(i.shape)]
        labels = f"{full},{new}->{full[:axis]}{new}{full[axis + 1 :]}"
        return self.apply(indexing.Take(labels=labels, axis=full[axis]), self, i)

    def one_hot(self, size: int, dtype: str = "f32") -> RecurrentTensor:
        return self.apply(indexing.OneHot(size=size, axis=len(self.shape), to=dtype), self)

    def expand(self, size: Any, axis: int = 0) -> RecurrentTensor:
        """Copies along a new axis of (possibly symbolic) size."""
        full = LETTERS[: len(self.shape) + 1]
        kept = full[:axis] + full[axis + 1 :]
        return self.apply(movement.Expand(labels=f"{kept}->{full}", sizes=(unwrap(size),)), self)

    def broadcast_to(self, shape: tuple[Expr | int, ...]) -> RecurrentTensor:
        lead = len(shape) - len(self.shape)
        if lead < 0 or self.shape != shape[lead:]:
            raise ShapeError(
                f"{self.shape} does not fit {shape}", facts=f"this is {self!r}", loc=here()
            )
        if not lead:
            return self
        full = LETTERS[: len(shape)]
        return self.apply(
            movement.Expand(labels=f"{full[lead:]}->{full}", sizes=shape[:lead]), self
        )

    def reduce_to(self, have: str, want: str) -> RecurrentTensor:
        """Sums the labels of `have` that `want` lacks, and orders the rest as in `want`."""
        axes = tuple(k for k, c in enumerate(have) if c not in want)
        out = self.apply(reduction.Sum(axes=axes), self) if axes else self
        left = "".join(c for c in have if c in want)
        if left == want:
            return out
        return out.apply(movement.Transpose(order=tuple(left.index(c) for c in want)), out)

    def backward(self, wrt: Any = None, *, through_updates: bool = False) -> None:
        """Gradients of (the sum over its domain of) this tensor; each of `wrt` gets a `.grad`."""
        from recurra.lang.autodiff import backward

        backward(self, wrt, through_updates)

    grad: RecurrentTensor | None = None


def _index(key: Any, r: Range) -> Any:
    if isinstance(key, slice):
        lo = r.lo if key.start is None else unwrap(key.start)
        hi = r.hi if key.stop is None else unwrap(key.stop)
        return Slice(lo, hi, 1 if key.step is None else key.step)
    e = unwrap(key)
    if not isinstance(e, (int, Expr)) or is_condition(e):
        raise DomainError(
            f"{key!r} is no index for dim {r.dim}",
            facts="indices are quasi-affine: dims, bounds, constants, + - * // %, min, max, ranges",
            hint="for a choice by data use .take(i) or rc.where(...)",
            loc=here(),
        )
    return r.hi + e if isinstance(e, int) and e < 0 else e


def _union(tracer: Tracer, args: tuple[RecurrentTensor, ...], op: Op) -> Domain:
    dims = op.mentions() & set(tracer.dim_names())
    ranges: dict[str, Range] = {}
    for a in args:
        for r in a.domain:
            old = ranges.setdefault(r.dim, r)
            if old != r:  # the point must lie in both
                ranges[r.dim] = Range(r.dim, ex.minimum(old.hi, r.hi), ex.maximum(old.lo, r.lo))
        dims |= {r.dim for r in a.domain}
    return tracer.domain(dims, ranges)


def as_tensor(x: Any, dtype: str | None = None) -> RecurrentTensor:
    """A recurrent tensor from a number, an index expression, or an array."""
    if isinstance(x, RecurrentTensor):
        return x
    tracer = current()
    if isinstance(x, Index):
        op: Op = Value(expr=x.expr, dtype="bool" if is_condition(x.expr) else dtype or "i32")
        dims = op.mentions() & set(tracer.dim_names())
        node = tracer.emit(op, (), tracer.domain(dims), "value")
    elif isinstance(x, (bool, int, float, np.generic)) or np.ndim(x) == 0:
        value = x.item() if isinstance(x, (np.generic, np.ndarray)) else x
        guess = "bool" if isinstance(value, bool) else "i32" if isinstance(value, int) else "f32"
        node = tracer.emit(Const(value=value, dtype=dtype or guess), (), Domain(), "const")
    else:
        array = np.asarray(x)
        if dtype is None and array.dtype == np.float64:
            array = array.astype(np.float32)
        if array.dtype.name not in SHORT_NAME:
            raise ShapeError(f"no tensor has the type {array.dtype}", loc=here())
        key = f"data{len(Data.table)}"
        Data.table[key] = array
        node = tracer.emit(Data(key=key), (), Domain(), "data")
    return RecurrentTensor(tracer, Graph(tracer.nodes, ()).read(node.name))


def elementwise(op: type[Elementwise], *xs: Any) -> RecurrentTensor:
    """`op` on operands that broadcast from the right and meet in one type."""
    known = [x for x in xs if isinstance(x, RecurrentTensor)]
    dtype = known[0].dtype if known else None
    for x in known[1:]:
        dtype = join(dtype or x.dtype, x.dtype)
    tensors = [_meet(x, dtype, op, k) for k, x in enumerate(xs)]
    rank = max(len(x.shape) for x in tensors)
    ins: list[str] = []
    sizes: dict[str, Expr | int] = {}
    for k, x in enumerate(tensors):
        axes = LETTERS[rank - len(x.shape) : rank]
        ones = [a for a, n in enumerate(x.shape) if n == 1 and _widest(tensors, rank, axes[a]) != 1]
        if ones:  # an axis of size 1 broadcasts: drop it
            x = x.apply(reduction.Sum(axes=tuple(ones)), x)
            axes = "".join(c for a, c in enumerate(axes) if a not in ones)
            tensors[k] = x
        for c, n in zip(axes, x.shape, strict=True):
            if sizes.setdefault(c, n) != n:
                shapes = " and ".join(str(t.type) for t in tensors)
                raise ShapeError(
                    f"{op.name} of {shapes}: sizes {sizes[c]} and {n} do not match",
                    facts="shapes meet axis by axis from the right",
                    hint="expand, reshape or transpose one of them",
                    loc=here(),
                )
        ins.append(axes)
    labels = join_labels(tuple(ins), LETTERS[:rank])
    return tensors[0].apply(op(labels=labels), *tensors)


def _widest(tensors: list[RecurrentTensor], rank: int, label: str) -> Expr | int:
    axis = LETTERS.index(label) - rank
    sizes = [t.shape[axis] for t in tensors if len(t.shape) >= -axis]
    return next((n for n in sizes if n != 1), 1)


def _meet(x: Any, dtype: str | None, op: type[Elementwise], k: int) -> RecurrentTensor:
    if op is el.Where and k == 0:
        return as_tensor(x)
    if op in (el.Cast, el.Not):
        return as_tensor(x)
    if isinstance(x, float) and dtype is not None and not is_float(dtype):
        dtype = "f32"
    x = as_tensor(x, dtype)
    return x.cast(dtype) if dtype and x.dtype != dtype else x


def zeros(type_: Type) -> Const:
    return Const(value=0.0 if is_float(type_.dtype) else 0, dtype=type_.dtype, shape=type_.shape)
