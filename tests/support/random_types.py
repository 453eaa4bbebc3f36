"""Random programs over small types, and what plain NumPy makes of the same.

A value is a tensor x[t] of shape [N] and the array [T, N] that NumPy has for it. Values are exact
where no rounding has come in: only those are compared, cast to integers or searched for a place.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import recurra as rc
from recurra.frontend.context import Context
from recurra.frontend.tensor import RecurrentTensor
from recurra.ir.types import NUMPY_NAME, SHORT_NAME, Type

T_SIZE, WIDTH = 5, 4
INTEGERS = ("u8", "i8", "u32", "i32", "i64")
FLOATS = ("f16", "bf16", "f32", "f64")
EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
SUMMED = {"bool": "i32", "u8": "i32", "i8": "i32"}  # others keep their type
NEXT = {"int16": "int32", "uint16": "int32"}  # what NumPy would meet in, and we have not


@dataclass
class Value:
    """A tensor, the array that it must be, how large its terms were, and whether it is exact.

    The coarsest type that it was rounded to, on its way, decides how far it may be off.
    """

    x: RecurrentTensor
    want: np.ndarray
    scale: float
    exact: bool = True
    epsilon: float = 0.0

    @property
    def dtype(self) -> str:
        return SHORT_NAME[self.want.dtype.name]


@dataclass
class Program:
    """A context, its inputs, and the values that it puts out."""

    ctx: Context
    bounds: dict[Any, int]
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)


def array(r: random.Random, dtype: str) -> np.ndarray:
    """Numbers of a type: small ones, its ends, and of floats also NaN and infinities."""
    shape, name = (T_SIZE, WIDTH), NUMPY_NAME[dtype]
    numbers = [r.randint(-9, 9) / r.choice((1, 2, 4)) for _ in range(T_SIZE * WIDTH)]
    if dtype == "bool":
        return np.array([n > 0 for n in numbers]).reshape(shape)
    if dtype in INTEGERS:
        info = np.iinfo(name)
        ends = [int(info.min), int(info.max), int(info.max) // 2]
        picked = [r.choice(ends) if r.random() < 0.2 else int(n) for n in numbers]
        return np.array([max(n, int(info.min)) for n in picked], name).reshape(shape)
    if r.random() < 0.3:
        numbers = [r.choice((np.nan, np.inf, -np.inf)) if r.random() < 0.2 else n for n in numbers]
    return np.array(numbers).astype(name).reshape(shape)


def met(a: str, b: str) -> str:
    """The type that operands meet in: NumPy's, but that integers never widen floats."""
    if (a in FLOATS) != (b in FLOATS):
        return a if a in FLOATS else b
    if {a, b} == {"f16", "bf16"}:
        return "f32"
    name = np.result_type(np.dtype(NUMPY_NAME[a]), np.dtype(NUMPY_NAME[b])).name
    return SHORT_NAME[NEXT.get(name, name)]


WORDS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "sort": (lambda x: x.sort(), lambda w: np.sort(w, 1)),
    "descending": (lambda x: x.sort(descending=True), lambda w: np.sort(w, 1)[:, ::-1]),
    "topk": (lambda x: x.topk(2)[0].tile(2), lambda w: np.tile(np.sort(w, 1)[:, :1:-1], (1, 2))),
    "flip": (lambda x: x.flip(), lambda w: w[:, ::-1]),
    "roll": (lambda x: x.roll(1, axis=0), lambda w: np.roll(w, 1, 1)),
    "cummax": (lambda x: x.cummax(), lambda w: np.maximum.accumulate(w, 1)),
    "repeat": (lambda x: x.cut(0, 2).repeat(2, axis=0), lambda w: np.repeat(w[:, :2], 2, 1)),
    "largest": (lambda x: x.max().expand(WIDTH), lambda w: np.tile(w.max(1)[:, None], (1, WIDTH))),
    "take": (lambda x: x.take(rc.constant([3, 0, 0, 1])), lambda w: w[:, [3, 0, 0, 1]]),
}


def largest(*arrays: np.ndarray) -> float:
    """The largest finite number, at least 1."""
    every = np.concatenate([np.ravel(a).astype("f8") for a in arrays])
    return float(np.max(np.abs(every), initial=1.0, where=np.isfinite(every)))


class Writer:
    """Writes one random program."""

    def __init__(self, seed: int, backends: tuple[str, ...] = ()):
        self.r = random.Random(seed)
        # Torch has no unsigned words of 32 bits
        self.integers = tuple(d for d in INTEGERS if d != "u32" or "torch" not in backends)
        self.values: list[Value] = []
        self.picked: list[Value] = []  # for the step that is written

    def write(self, steps: int) -> Program:
        ctx = rc.Context(dims="t")
        with ctx as ((t, T),):
            self.t, self.T = t, T
            program = Program(ctx, {T: T_SIZE})
            for k in range(3):
                program.inputs[f"in{k}"] = self.given(f"in{k}")
            with np.errstate(all="ignore"):
                for k in range(steps):
                    name, made = self.step()
                    program.text.append(f"y{k}: {name} -> {made.dtype}")
                    program.values[f"y{k}"] = made
            given = zip(program.inputs, self.values, strict=False)
            program.values |= {f"given_{name}": v for name, v in given}  # no input is left unread
            rc.output(**{name: v.x for name, v in program.values.items()})
        return program

    def given(self, name: str) -> np.ndarray:
        """The array of a new input."""
        dtype = self.r.choice(("bool", *self.integers, *FLOATS))
        given = array(self.r, dtype)
        x = rc.input(Type(dtype, (WIDTH,)), (self.t,), name=name)
        self.values.append(Value(x, given, largest(given)))
        return given

    def step(self) -> tuple[str, Value]:
        kinds: list[Callable[[], Value | None]] = [
            self.cast, self.arithmetic, self.arithmetic, self.extreme, self.compare, self.choose,
            self.sum, self.sum_so_far, self.sum_from_here, self.max_so_far, self.cumsum, self.mean,
            self.product, self.place, self.fold, self.assign, self.recurrence, self.word,
            self.bits,
        ]  # fmt: skip
        while True:
            kind = self.r.choice(kinds)
            self.picked = []
            made = kind()
            if made is not None:
                rounded = [v.epsilon for v in self.picked if not v.exact]
                made.epsilon = max(EPSILON.get(made.dtype, 0.0), *rounded, 0.0)
                assert made.x.dtype == made.dtype, f"{kind.__name__}: {made.x.dtype}, {made.dtype}"
                self.values.append(made)
                return kind.__name__, made

    def pick(self, dtype: str = "") -> Value:
        """One of the values, of a type."""
        self.picked.append(self.r.choice([v for v in self.values if dtype in ("", v.dtype)]))
        return self.picked[-1]

    def operands(self) -> tuple[Value, np.ndarray, Value, np.ndarray] | None:
        """Two values, and their arrays in the type that they meet in."""
        a, b = self.pick(), self.pick()
        dtype = met(a.dtype, b.dtype)
        if dtype == "u32" and "u32" not in self.integers:
            return None
        name = NUMPY_NAME[dtype]
        return a, a.want.astype(name), b, b.want.astype(name)

    def rounded(
        self, x: RecurrentTensor, want: np.ndarray, *of: Value, terms: float = 0.0
    ) -> Value:
        """A result of arithmetic: exact if it is an integer."""
        whole = want.dtype.kind in "biu" and all(v.exact for v in of)
        scale = max(largest(want), terms, *(v.scale for v in of))
        return Value(x, want, scale, whole)

    # ---- pointwise

    def cast(self) -> Value | None:
        a, to = self.pick(), self.r.choice(("bool", *self.integers, *FLOATS))
        if a.dtype in FLOATS and to not in FLOATS:
            if not a.exact or not np.isfinite(a.want).all():
                return None
            if to != "bool":
                info = np.iinfo(NUMPY_NAME[to])
                cut = np.trunc(a.want.astype("f8"))
                if (cut < info.min).any() or (cut >= float(info.max)).any():
                    return None
        want = a.want.astype(NUMPY_NAME[to])
        exact = a.exact and (to not in FLOATS or np.array_equal(want.astype("f8"), a.want))
        return Value(a.x.cast(to), want, max(a.scale, largest(want)), exact)

    def arithmetic(self) -> Value | None:
        if (found := self.operands()) is None:
            return None
        a, left, b, right = found
        op = self.r.choice(("+", "*", "-"))
        if left.dtype == bool and op == "-":
            return None
        f: Any = {"+": lambda p, q: p + q, "*": lambda p, q: p * q, "-": lambda p, q: p - q}[op]
        want = f(left, right)
        return self.rounded(f(a.x, b.x), want, a, b, terms=a.scale * b.scale if op == "*" else 0.0)

    def extreme(self) -> Value | None:
        if (found := self.operands()) is None:
            return None
        a, left, b, right = found
        ours, theirs = self.r.choice(((rc.maximum, np.maximum), (rc.minimum, np.minimum)))
        want = theirs(left, right)
        return Value(ours(a.x, b.x), want, max(a.scale, b.scale), self.kept(want, a, b))

    def kept(self, want: np.ndarray, *of: Value) -> bool:
        """Whether a choice of exact values is exact in the type that they met in."""
        wide = [v.want.dtype == want.dtype or v.dtype not in FLOATS for v in of]
        small = all(v.scale < 2**8 for v in of)
        return all(v.exact for v in of) and (all(wide) or small) and small

    def compare(self) -> Value | None:
        if (found := self.operands()) is None:
            return None
        a, left, b, right = found
        if not (a.exact and b.exact) or max(a.scale, b.scale) >= 2**8:
            return None
        f: Any = self.r.choice((lambda p, q: p < q, lambda p, q: p <= q, lambda p, q: p == q))
        return Value(f(a.x, b.x), f(left, right), 1.0)

    def choose(self) -> Value | None:
        flags = [v for v in self.values if v.dtype == "bool" and v.exact]
        found = self.operands()
        if not flags or found is None:
            return None
        a, left, b, right = found
        c = self.r.choice(flags)
        want = np.where(c.want, left, right)
        return Value(rc.where(c.x, a.x, b.x), want, max(a.scale, b.scale), self.kept(want, a, b))

    # ---- sums and extremes

    def summed(self, a: Value) -> np.ndarray:
        return a.want.astype(NUMPY_NAME[SUMMED.get(a.dtype, a.dtype)])

    def reduced(self, a: Value, x: RecurrentTensor, want: np.ndarray) -> Value:
        terms = a.scale * T_SIZE * WIDTH
        return self.rounded(x, want.astype(self.summed(a).dtype), a, terms=terms)

    def sum(self) -> Value:
        a = self.pick()
        whole = self.summed(a)
        total = whole.sum(axis=1, dtype=whole.dtype, keepdims=True)
        return self.reduced(a, a.x.sum().expand(WIDTH), np.broadcast_to(total, whole.shape))

    def sum_so_far(self) -> Value:
        a = self.pick()
        whole = self.summed(a)
        x = a.x[0 : self.t + 1] if not a.x.indexed else a.x
        if a.x.indexed:
            return self.sum()
        return self.reduced(a, x.sum(axis=0), whole.cumsum(axis=0, dtype=whole.dtype))

    def sum_from_here(self) -> Value:
        a = self.pick()
        if a.x.indexed:
            return self.sum()
        whole = self.summed(a)[::-1].cumsum(axis=0, dtype=self.summed(a).dtype)[::-1]
        return self.reduced(a, a.x[self.t : self.T].sum(axis=0), whole)

    def cumsum(self) -> Value:
        a = self.pick()
        whole = self.summed(a)
        return self.reduced(a, a.x.cumsum(), whole.cumsum(axis=1, dtype=whole.dtype))

    def fold(self) -> Value:
        """A sum over all points, of a product or of a value."""
        a = self.pick()
        if a.x.indexed:
            return self.sum()
        whole = self.summed(a)
        total = np.broadcast_to(whole.sum(axis=0, dtype=whole.dtype), whole.shape)
        every = a.x[0 : self.T].sum(axis=0)
        # over t again, so that it meets the others
        first = rc.value(self.t).cast(every.dtype) * 0 + every
        return self.reduced(a, first, total)

    def max_so_far(self) -> Value | None:
        a = self.pick()
        if a.x.indexed:
            return None
        ours, theirs = self.r.choice((("max", np.maximum), ("min", np.minimum)))
        x = getattr(a.x[0 : self.t + 1], ours)(axis=0)
        return Value(x, theirs.accumulate(a.want, axis=0), a.scale, a.exact)

    def mean(self) -> Value:
        a = self.pick()
        name = NUMPY_NAME[a.dtype if a.dtype == "f64" else "f32"]
        want = a.want.astype(name).mean(axis=1, keepdims=True)
        want = want.astype(NUMPY_NAME[a.dtype if a.dtype in FLOATS else "f32"])
        whole = np.broadcast_to(want, a.want.shape)
        return Value(a.x.mean().expand(WIDTH), whole, a.scale * WIDTH, False)

    def product(self) -> Value | None:
        """Σ a·b of values of one type."""
        a = self.pick()
        b = self.pick(a.dtype)
        left, right = self.summed(a), self.summed(b)
        total = (left * right).sum(axis=1, dtype=left.dtype, keepdims=True)
        x = rc.einsum("a,a->", a.x, b.x).expand(WIDTH)
        want = np.broadcast_to(total, left.shape)
        return self.rounded(x, want, a, b, terms=a.scale * b.scale * WIDTH)

    def place(self) -> Value | None:
        a = self.pick()
        if not a.exact:
            return None
        at = a.want.astype("f8" if a.dtype in FLOATS else a.want.dtype).argmax(axis=1)
        want = np.broadcast_to(at.astype("i4")[:, None], a.want.shape)
        return Value(a.x.argmax().expand(WIDTH), want, float(WIDTH))

    def assign(self) -> Value | None:
        """Branches of a type that holds the values: they are cast."""
        a, b = self.pick(), self.pick()
        dtype = met(a.dtype, b.dtype)
        if dtype == "u32" and "u32" not in self.integers:
            return None
        y = rc.like(Type(dtype, (WIDTH,)), (self.t,))
        y[0] = a.x
        y[self.t] = b.x
        name = NUMPY_NAME[dtype]
        want = np.concatenate([a.want[:1].astype(name), b.want[1:].astype(name)])
        return Value(y, want, max(a.scale, b.scale), self.kept(want, a, b))

    def word(self) -> Value | None:
        """The elements in another order."""
        a = self.pick()
        ours, theirs = WORDS[self.r.choice(list(WORDS))]
        if not np.isfinite(a.want.astype("f8")).all():
            return None
        return Value(ours(a.x), theirs(a.want), a.scale, a.exact)

    def bits(self) -> Value | None:
        """Of integers, and of truth values."""
        if (found := self.operands()) is None or found[1].dtype.kind not in "biu":
            return None
        a, left, b, right = found
        f: Any = self.r.choice((lambda p, q: p & q, lambda p, q: p | q, lambda p, q: p ^ q))
        return Value(f(a.x, b.x), f(left, right), 2.0**8)

    def recurrence(self) -> Value | None:
        """A loop up or down, of the largest, or of integers the sum, which wraps around."""
        if (found := self.operands()) is None or found[1].dtype == bool:
            return None
        a, left, b, right = found
        folds: list[Any] = [(rc.maximum, np.maximum), (rc.minimum, np.minimum)]
        folds += [(lambda p, q: p + q, np.add)] if left.dtype.kind in "iu" else []
        ours, theirs = self.r.choice(folds)
        t, want = self.t, np.empty_like(left)
        y = rc.like(Type(SHORT_NAME[left.dtype.name], (WIDTH,)), (t,))
        if self.r.random() < 0.5:
            y[0], y[t] = a.x, ours(y[t - 1], b.x)
            order = range(T_SIZE)
        else:
            y[self.T - 1], y[t] = a.x, ours(y[t + 1], b.x)
            order = range(T_SIZE - 1, -1, -1)
        for k, at in enumerate(order):
            want[at] = theirs(want[order[k - 1]], right[at]) if k else left[at]
        exact = a.exact and b.exact if theirs is np.add else self.kept(want, a, b)
        return Value(y, want, max(a.scale, b.scale, largest(want)), exact)
