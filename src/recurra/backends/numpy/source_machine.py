"""The machine and the array namespace that write a walk down as NumPy source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from recurra.backends.batched_draws import draws_of
from recurra.backends.bounded_int import ANY, Count, box_keys, extreme, range_of
from recurra.backends.numpy.python_source_writer import Writer
from recurra.backends.numpy.small_arrays import padded
from recurra.backends.numpy.source_blocks import Line
from recurra.backends.numpy.traced_array import (
    StandIn,
    as_zero_array,
    plain,
    possible_bases,
    zero_array,
)
from recurra.codegen.array_machine import Starts, Until
from recurra.codegen.widened_product import widened
from recurra.cost.thresholds import MAX_SMALL_ELEMENTS
from recurra.ir.expr import SEED, evaluate
from recurra.ir.op import Op
from recurra.ir.statement import Statement
from recurra.ir.types import NUMPY_NAME
from recurra.ops.contraction import numpy_einsum
from recurra.ops.control import Foreign
from recurra.ops.indexing import Pick
from recurra.ops.movement import Cut
from recurra.ops.ordering import numpy_joined_at
from recurra.ops.random import Uniform, threefry_rounds
from recurra.support.source_text import joined, moves


def threefry(k0: np.ndarray, k1: np.ndarray, x0: np.ndarray, x1: np.ndarray) -> Any:
    """`ops.random.threefry` on arrays."""
    return threefry_rounds(np, k0, k1, x0, x1)


def _take(array: Any, at: Any, axis: int, mode: str = "raise") -> np.ndarray:
    """Infer the result of np.take, which itself would copy an operand without memory."""
    return zero_array((*array.shape[:axis], *np.shape(at), *array.shape[axis + 1 :]), array.dtype)


class NumpyNamespace:
    """The namespace of NumPy for operators that are written down."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        # reads of single points, by name: their shape without axes of 1, and a read of that shape
        self.points: dict[str, tuple[tuple[int, ...], Callable[[], StandIn]]] = {}

    def reshape(self, array: Any, shape: Any) -> Any:
        """Reshape an array; a read of single points is read in the final shape instead."""
        if not isinstance(array, StandIn):
            return np.reshape(array, shape)
        if array.shape == tuple(shape):
            return array
        point = self.points.get(array.name)
        if point is not None and point[0] == tuple(shape):
            return point[1]()
        return np.reshape(array, shape)  # pyright: ignore

    def asarray(self, array: Any, dtype: Any = None, copy: bool | None = None) -> Any:
        if not isinstance(array, (StandIn, Count)):
            return np.asarray(array, dtype=dtype, copy=copy)
        if copy and isinstance(array, StandIn):
            return self.writer.emit_call(f"{array.name}.copy", np.ndarray.copy, (), {}, array)
        if dtype is not None:
            dtype = np.dtype(dtype)
        if isinstance(array, StandIn) and isinstance(array.like, np.ndarray):
            return array if dtype is None or dtype == array.dtype else array.astype(dtype)
        text = self.writer.show(array)
        if dtype is not None and dtype.kind == "u":  # it wraps around, as arrays do
            text = f"{self.writer.atom(array)} & {2 ** (8 * dtype.itemsize) - 1}"
        given = text if dtype is None else f"{text}, {self.writer.show(dtype)}"
        like, memory = np.asarray(plain(array), dtype=dtype), possible_bases(np.asarray, (array,))
        return self.writer.assign(f"np.asarray({given})", like, memory=memory)

    def where(self, condition: Any, left: Any, right: Any) -> Any:
        if isinstance(condition, Count):
            text = f"{self.writer.show(left)} if {condition} else {self.writer.show(right)}"
            memory = possible_bases(np.where, (left, right))
            return self.writer.assign(text, np.asarray(plain(left)), memory=memory)
        if isinstance(condition, bool):
            return left if condition else right
        return np.where(condition, left, right)

    def minimum(self, left: Any, right: Any) -> Any:
        return self._lesser("min", np.minimum, left, right)

    def maximum(self, left: Any, right: Any) -> Any:
        return self._lesser("max", np.maximum, left, right)

    def _lesser(self, which: str, of_arrays: Any, left: Any, right: Any) -> Any:
        if all(isinstance(x, (int, Count)) for x in (left, right)):
            return extreme(which, left, right)
        return of_arrays(*(x.tensor(x) if isinstance(x, Count) else x for x in (left, right)))

    def clip(self, array: Any, low: Any, high: Any) -> Any:
        if isinstance(array, Count):
            return extreme("max", extreme("min", array, high), low)
        return np.clip(array, low, high)

    def full(self, shape: Any, value: Any, dtype: Any = None) -> Any:
        return self._new("full", shape, value, dtype=dtype)

    def zeros(self, shape: Any, dtype: Any = None) -> Any:
        """Write a new array at each call: stores begin with one."""
        like = np.zeros(shape, dtype)
        text = f"np.zeros({self.writer.show(shape)}, {self.writer.show(like.dtype)})"
        return self.writer.assign(text, like, moves=False)

    def arange(self, count: Any, dtype: Any = None) -> Any:
        return self._new("arange", count, dtype=dtype)

    def zeros_like(self, array: Any) -> Any:
        return self.zeros(array.shape, array.dtype)

    def _new(self, name: str, *args: Any, dtype: Any) -> Any:
        """An array made of plain numbers: a constant of the source if it is small."""
        dtype = None if dtype is None else np.dtype(dtype)
        of = getattr(np, name)
        is_known = not any(isinstance(x, (StandIn, Count)) for x in args)
        if is_known and np.prod(args[0]) <= MAX_SMALL_ELEMENTS:
            return of(*args, dtype=dtype)
        return self.writer.emit_call(f"np.{name}", of, args, {"dtype": dtype})

    def einsum(self, labels: str, *xs: Any) -> Any:
        return numpy_einsum(labels, *xs)

    def widened(self, labels: str, dtype: str, *xs: Any) -> Any:
        """Write a call of `widened`, which casts the operands part by part."""
        name = self.writer.function(widened)
        return self.writer.emit_call(name, widened, (labels, dtype, *xs), {})

    def pad(self, array: Any, widths: Sequence[tuple[int, int]], constant_values: float) -> Any:
        name = self.writer.function(padded)
        return self.writer.emit_call(name, padded, (array, widths, constant_values), {})

    def take(self, array: Any, at: Any, **options: Any) -> Any:
        if isinstance(at, (StandIn, Count)):  # np.take does not dispatch on its indices
            return self.writer.emit_call("np.take", _take, (array, at), options)
        return np.take(array, at, **options)

    def cummax(self, array: Any, axis: int) -> Any:
        return np.maximum.accumulate(array, axis=axis)

    def joined_at(self, *args: Any) -> Any:
        """Write a call of `numpy_joined_at`, which may change an array in place."""
        function = self.writer.function(numpy_joined_at)
        return self.writer.emit_call(function, numpy_joined_at, args, {})

    def threefry(self, *args: Any) -> Any:
        """Write one call of `threefry`, none of its operations."""
        w = self.writer
        shape = np.broadcast_shapes(*map(np.shape, args))
        text = f"{w.function(threefry)}({', '.join(map(w.show, args))})"
        like, small = zero_array(shape, np.uint32), prod(shape) <= MAX_SMALL_ELEMENTS
        both = w.assign(text, None, moves=small)
        return tuple(w.assign(f"{both.name}[{k}]", like) for k in range(2))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class WritingMachine:
    """A machine that writes source: it runs a walk once, and loops become loops of the source."""

    def __init__(self, writer: Writer, sizes: Mapping[str, int]) -> None:
        self.writer, self.sizes = writer, sizes
        self.xp: Any = NumpyNamespace(writer)
        self.functions: dict[tuple[Any, ...], str] = {}  # of other libraries, by key and axes

    def counter(self, name: str, span: tuple[int, int]) -> Count:
        return Count(name, span, self.number)

    def number(self, count: Count) -> StandIn:
        """A counted number as an operand: a Python scalar, which takes the type of arrays."""
        return StandIn(self.writer, self.writer.atom(count), plain(count))

    # ---- operators

    def apply(self, node: Statement, env: Mapping[str, Any], *args: Any) -> Any:
        result = self.run(node.op, env, args)
        if not any(result is x for x in args):
            self.writer.rename(result, node.name)
        return result

    def run(self, op: Op, env: Mapping[str, Any], args: Sequence[Any]) -> Any:
        if isinstance(op, Foreign):
            return self.foreign(op, args)
        if isinstance(op, Uniform) and (drawn := self.draws(op, env)) is not None:
            return drawn
        if isinstance(op, Cut) and isinstance(at := evaluate(op.start, env, self.xp), Count):
            size = evaluate(op.size, env)
            return self.part(args[0], op.axis, slice(at, at + size), (size,))
        if isinstance(op, Pick) and isinstance(at := evaluate(op.at_, env, self.xp), Count):
            first, last = at.range
            if first >= 0 and last < args[0].shape[op.axis]:  # elsewhere the op may give zero
                return self.part(args[0], op.axis, at, ())
        return op.run(self.xp, env, *args)

    def part(self, array: Any, axis: int, at: Count | slice, sizes: tuple[int, ...]) -> StandIn:
        """A slice of an axis at a counted place; its size is fixed."""
        key = self.writer.key((*(slice(None),) * axis, at))
        like = zero_array((*array.shape[:axis], *sizes, *array.shape[axis + 1 :]), array.dtype)
        memory = possible_bases(np.ndarray.__getitem__, (array,))
        return self.writer.assign(f"{self.writer.show(array)}[{key}]", like, memory=memory)

    def draws(self, op: Uniform, env: Mapping[str, Any]) -> StandIn | None:
        """Call a function that makes the draws of many launches at once; None if there is none."""
        w = self.writer
        draws = None if w.depth else draws_of(op, env, np)
        if draws is None:
            return None
        given = ", ".join(w.show(env[x]) for x in (SEED, *draws.dims))
        like = zero_array(op.infer().sizes(env), NUMPY_NAME[op.dtype])
        return w.assign(f"{w.bound(draws, w.named('draws'))}({given})", like)

    def foreign(self, op: Foreign, args: Sequence[Any]) -> StandIn:
        """One result of a function of another library; one call returns them all."""
        w, type_ = self.writer, op.infer()
        which = op.fn.key, op.vmaps
        if which not in self.functions:
            called = partial(op.fn.get(), np, op.vmaps)
            self.functions[which] = w.bound(called, w.named(op.name))
        results = w.call_once(f"{self.functions[which]}({', '.join(map(w.show, args))})")
        like = zero_array(type_.sizes(self.sizes), NUMPY_NAME[type_.dtype])
        return w.assign(f"{results.name}[{op.out}]", like, moves=False)

    # ---- loops

    def carried(self, vals: Sequence[Any]) -> list[StandIn]:
        """Name the loop-carried variables, and bind them to their initial values."""
        w, out = self.writer, list[StandIn]()
        for x in vals:
            stem = x.name.rstrip("0123456789") if isinstance(x, StandIn) else "v"
            like = x.like if isinstance(x, StandIn) else np.asarray(plain(x))
            name = w.fresh(stem if stem.isidentifier() else "v")
            w.items.append(Line(name, w.owned(x), is_value=True))
            out.append(StandIn(w, name, as_zero_array(like)))
        return out

    def move(self, names: Sequence[StandIn], after: Sequence[Any]) -> None:
        """Assign the loop-carried variables at the end of a step."""
        pairs = [(n.name, self.writer.owned(x)) for n, x in zip(names, after, strict=True)]
        for line in moves(pairs):
            self.writer.do(line)

    def loop(self, dim: str, lo: Any, hi: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        w, (vals, stores) = self.writer, carry
        names, clock = self.carried(vals), w.named(dim)
        with w.block(f"for {clock} in range({lo}, {hi}):"):
            time = self.counter(clock, (range_of(lo)[0], range_of(hi)[1] - 1))
            after, _ = body(time, (names, stores))
            self.move(names, after)
        return names, stores

    def while_loop(
        self, dim: str, lo: Any, hi: Any, end: Any, late: int, every: int, body: Until, carry: Any
    ) -> tuple[Any, Any]:
        w, (vals, stores) = self.writer, carry
        names, clock = self.carried(vals), w.named(dim)
        ends = self.counter(w.fresh(f"{clock}_end"), (0, range_of(end)[1]))
        known = self.counter(w.fresh(f"{clock}_known"), ends.range) if every > 1 else ends
        w.do(f"{ends} = {w.show(end)}")
        with w.block(f"for {clock} in range({lo}, {hi}):"):
            time = self.counter(clock, (range_of(lo)[0], range_of(hi)[1] - 1))
            if every > 1:
                with w.block(f"if {(time - lo) % every == 0}:"):
                    w.do(f"{known} = {ends}")
            with w.block(f"if {time >= known + late}:"):
                w.do("break")
            goes_on, after, (values, _) = body(time, (names, stores))
            with w.block(f"if not {w.show(goes_on)}:"):
                w.do(f"{ends} = min({ends}, {after})")
            self.move(names, values)
        return ends, (names, stores)

    def cond(self, condition: Any, body: Callable[[Any], Any], carry: Any) -> Any:
        if isinstance(condition, bool):
            return body(carry) if condition else carry
        vals, stores = carry
        names = self.carried(vals)
        with self.writer.block(f"if {self.writer.show(condition)}:"):
            after, _ = body((names, stores))
            self.move(names, after)
        return names, stores

    def minimum(self, left: Any, right: Any) -> Any:
        return extreme("min", left, right)

    # ---- stores

    def read(self, store: StandIn, starts: Starts, sizes: tuple[int, ...]) -> StandIn:
        slices, points = box_keys([*map(self.place, starts)], sizes, store.shape)
        copied = self.cut(store, slices, sizes)
        shape = tuple(n for n in sizes if n != 1)
        self.xp.points[copied.name] = shape, lambda: self.cut(store, points, shape)
        return copied

    def cut(self, store: StandIn, keys: Sequence[str], shape: tuple[int, ...]) -> StandIn:
        """Copy a part of a store."""
        part = f"[{key}]" if (key := joined(keys)) else ""
        like = zero_array(shape, store.dtype)
        return self.writer.assign(f"{store.name}{part}.copy()", like, moves=False)

    def place(self, at: Any) -> Any:
        """A place on an axis as a counted number."""
        if not isinstance(at, StandIn):
            return at if isinstance(at, Count) else int(at)
        return self.counter(self.writer.assign(f"int({at.name})", 0, "k").name, ANY)

    def read_all(self, store: StandIn) -> StandIn:
        return store

    def gather(self, store: StandIn, axis: int, at: Any) -> Any:
        return self.xp.take(store, self.xp.clip(at, 0, store.shape[axis] - 1), axis=axis)

    def write(
        self, store: StandIn, starts: Starts, value: Any, also: Starts | None = None
    ) -> StandIn:
        for at in (starts,) if also is None else (starts, also):
            keys = [":" if s is None else str(self.place(s)) for s in at]
            self.put(store, keys, value)
        return store

    def put(self, store: StandIn, keys: Sequence[str], value: Any) -> None:
        text = f"{store.name}[{', '.join(keys) or '...'}] = {self.writer.show(value)}"
        self.writer.do(text)

    def write_box(self, store: StandIn, starts: Starts, value: Any) -> StandIn:
        pairs = zip(map(self.place, starts), value.shape, strict=True)
        self.put(store, [f"{s}:{s + n}" for s, n in pairs], value)
        return store
