"""One table of sample operands for every op: what the laws of test_ops are checked on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recurra.ir.expr import SEED, Sym, maximum, minimum
from recurra.ir.op import Op
from recurra.ir.user_objects import ArrayResource, HostFunction, Resource
from recurra.ops.sampled_rows import FUNCTION

t, T = Sym("t"), Sym("T")
ENV: dict[str, Any] = {"t": 2, "b": 1, "T": 5, "B": 3, SEED: 7}
DATA = ArrayResource("sample", np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
CALLED = HostFunction("sample", lambda x: (x + 1, x > 0))


def mapped(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` of arrays as Foreign takes it: loops over its mapped axes, the outermost last."""

    def g(xp: Any, vmaps: tuple[Any, ...], *xs: Any) -> tuple[Any, ...]:
        if not vmaps:
            return f(xp, *xs)
        *inner, (flags, last, _) = vmaps
        axis = -1 if last else 0
        n = next(x.shape[axis] for x, m in zip(xs, flags, strict=True) if m)
        rows = [
            g(
                xp,
                tuple(inner),
                *(
                    xp.take(x, xp.asarray(k), axis=axis) if m else x
                    for x, m in zip(xs, flags, strict=True)
                ),
            )
            for k in range(n)
        ]
        return tuple(xp.stack(r, axis=axis) for r in zip(*rows, strict=True))

    return g


MAPPED = Resource("sample", mapped(lambda xp, x, y: (x + xp.sum(y), xp.sum(y))))


@dataclass(frozen=True)
class Sample:
    """An op, operands for the laws ("f[2,3]"), and one value worked out by hand."""

    name: str
    attributes: dict[str, Any]
    operands: tuple[str, ...]
    known: tuple[tuple[Any, ...], Any] | None = None
    type: str = "f64"
    env: dict[str, Any] = field(default_factory=lambda: ENV)

    @property
    def op(self) -> Op:
        return Op.registry[self.name](**self.attributes)

    def arrays(self, row: int = 0) -> list[np.ndarray]:
        return [operand(s, k, row) for k, s in enumerate(self.operands)]

    def __str__(self) -> str:
        return f"{self.op!r} of {', '.join(self.operands)}"


def operand(spec: str, k: int, row: int) -> np.ndarray:
    """f: floats away from 0, p: positive, i: integers below 3, b: truth values."""
    kind, shape = spec[0], tuple(int(n) for n in re.findall(r"\d+", spec))
    rng = np.random.default_rng((k, row, *shape))
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind == "i":
        return rng.integers(0, 3, shape).astype(np.int32)
    x = rng.uniform(0.3, 1.7, shape)
    return np.asarray(x if kind == "p" else x * rng.choice([-1.0, 1.0], shape))


def s(name: str, *operands: str, known: Any = None, type: str = "f64", **attributes: Any) -> Sample:
    return Sample(name, attributes, operands, known, type)


def pair(name: str, known: Any, kind: str = "f", type: str = "f64") -> list[Sample]:
    """A pointwise op of two operands; one shows every way in which labels can align them."""
    labels = ["", "ab,b->ab", "ab,a->ab", "b,ab->ab", ",ab->ab", "a,b->ab", "a,b->ba", "ba,ab->ab"]
    labels = labels if name == "sub" else labels[:2]
    shapes = {"": (), "a": (2,), "b": (3,), "ab": (2, 3), "ba": (3, 2)}
    out: list[Sample] = []
    for text in labels:
        ins = text.split("->")[0].split(",") if text else ["ab", "ab"]
        operands = [f"{kind}{list(shapes[i])}" for i in ins]
        out.append(s(name, *operands, known=None if text else known, labels=text, type=type))
    return out


N = None  # no operand
SAMPLES: list[Sample] = [
    *pair("add", ((1.5, 2.0), 3.5)),
    *pair("sub", ((1.5, 2.0), -0.5)),
    *pair("mul", ((1.5, 2.0), 3.0)),
    *pair("div", ((1.5, 2.0), 0.75)),
    *pair("pow", ((1.5, 3.0), 3.375), kind="p"),
    *pair("maximum", ((1.5, 2.0), 2.0)),
    *pair("minimum", ((1.5, 2.0), 1.5)),
    *pair("mod", (([7.0, -7.0], [3.0, 3.0]), [1.0, 2.0])),
    *pair("equal", (([1.0, 2.0], [1.0, 3.0]), [True, False]), type="bool"),
    *pair("not_equal", (([1.0, 2.0], [1.0, 3.0]), [False, True]), type="bool"),
    *pair("less", (([1.0, 2.0], [1.0, 3.0]), [False, True]), type="bool"),
    *pair("less_equal", (([1.0, 4.0], [1.0, 3.0]), [True, False]), type="bool"),
    *pair("logical_and", (([True, True], [True, False]), [True, False]), "b", "bool"),
    *pair("going", (([True, True], [True, False]), [True, False]), "b", "bool"),
    *pair("logical_or", (([True, False], [False, False]), [True, False]), "b", "bool"),
    *pair("pow", (([2, -2, 1, -1, 0], [3, 3, -2, -3, 0]), [8, -8, 1, -1, 1]), "i", "i32"),
    *pair("pow", (([2, 5], [-1, -2]), [0, 0]), "i", "i32"),
    *pair("mod", (([7, -7, 7, -7, 5], [3, 3, -3, -3, 0]), [1, 2, -2, -1, 0]), "i", "i32"),
    *pair("floor_divide", (([7.0, -7.0, 1.0], [2.0, 2.0, 0.1]), [3.0, -4.0, 9.0])),
    *pair("floor_divide", (([7, -7, 7, -7, 5], [2, 2, -2, -2, 0]), [3, -4, -4, 3, 0]), "i", "i32"),
    *pair("bitwise_and", (([12, -1], [10, 6]), [8, 6]), "i", "i32"),
    *pair("bitwise_or", (([12, -8], [10, 6]), [14, -2]), "i", "i32"),
    *pair("bitwise_xor", (([12, -1], [10, 6]), [6, -7]), "i", "i32"),
    *pair("bitwise_xor", (([True, True], [True, False]), [False, True]), "b", "bool"),
    *pair("bitwise_left_shift", (([3, -3, 1, 1], [2, 1, 64, -1]), [12, -6, 0, 0]), "i", "i32"),
    *pair("bitwise_right_shift", (([13, -3, 9, -9], [2, 1, 64, -1]), [3, -2, 0, -1]), "i", "i32"),
    s("bitwise_invert", "i[2,3]", known=(([0, 5, -1],), [-1, -6, 0]), type="i32"),
    s("bitwise_invert", "b[2]", known=(([True, False],), [False, True]), type="bool"),
    *pair("with_gradient", ((1.5, 2.0), 1.5)),
    s("neg", "f[2,3]", known=((1.5,), -1.5)),
    s("abs", "f[2,3]", known=((-1.5,), 1.5)),
    s("sign", "f[2,3]", known=(([-2.0, 0.0, 5.0],), [-1.0, 0.0, 1.0])),
    s("floor", "f[2,3]", known=(([-1.5, 1.5],), [-2.0, 1.0])),
    s("round", "f[2,3]", known=(([-1.5, -0.5, 0.5, 1.5, 2.4],), [-2.0, 0.0, 0.0, 2.0, 2.0])),
    s("square", "f[2,3]", known=((-1.5,), 2.25)),
    s("sqrt", "p[2,3]", known=((2.25,), 1.5)),
    s("exp", "f[2,3]", known=((1.0,), 2.718281828459045)),
    s("log", "p[2,3]", known=((2.718281828459045,), 1.0)),
    s("erf", "f[2,3]", known=((0.4769362762044699,), 0.5)),
    s("erfc", "f[2,3]", known=((3.0,), 2.209049699858544e-05)),
    s("tanh", "f[2,3]", known=((0.5493061443340549,), 0.5)),  # artanh ½ = ln 3 / 2
    s("sigmoid", "f[2,3]", known=(([0.0, 1.0986122886681098],), [0.5, 0.75])),  # ln 3
    s("sin", "f[2,3]", known=((0.5235987755982988,), 0.5)),
    s("cos", "f[2,3]", known=((1.0471975511965976,), 0.5)),
    s("detach", "f[2,3]", known=((1.5,), 1.5)),
    s("copy", "f[2,3]", known=((1.5,), 1.5)),
    s("cast", "f[2,3]", known=((1.75,), 1.75), to="f32", type="f32"),
    s("cast", "f[2,3]", known=((-1.75,), -1), to="i32", type="i32"),
    s("cast", "i[2,3]", to="f64"),
    s("cast", "b[2,3]", to="i32", type="i32"),
    s("where", "b[2,3]", "f[2,3]", "f[2,3]", known=((True, 1.0, 2.0), 1.0)),
    s("where", "b[3]", "f[2,3]", "f[]", labels="b,ab,->ab"),
    s("where", "b[2]", "f[]", "f[3]", labels="a,,b->ab"),
    s("cond", "b[]", "f[2,3]", "f[2,3]", labels=",ab,ab->ab", known=((True, 1.0, 2.0), 1.0)),
    s("cond", "b[]", "f[2]", "f[]", labels=",a,->a"),
    s("logical_not", "b[2,3]", known=((True,), False), type="bool"),
    s("sum", "f[2,3,4]", known=(([[1.0, 2.0], [3.0, 4.0]],), [3.0, 7.0]), axes=(1,)),
    s("sum", "f[2,3,4]", axes=(0, 2)),
    s("sum", "f[2,3]", axes=()),
    s("sum", "i[2,3]", axes=(0,), type="i32"),
    s("prod", "f[2,3,4]", known=(([[1.0, 2.0], [3.0, 4.0]],), [2.0, 12.0]), axes=(1,)),
    s("prod", "f[2,3]", axes=(0, 1)),
    s("prod", "f[2,0]", axes=(1,)),
    s("prod", "i[2,3]", axes=(0,), type="i32"),
    s("max", "f[2,3,4]", known=(([[1.0, 2.0], [4.0, 3.0]],), [2.0, 4.0]), axes=(1,)),
    s("max", "f[2,3]", axes=(0, 1)),
    s("max", "f[2,0]", axes=(1,)),
    s("max", "i[2,0]", axes=(1,), type="i32"),
    s("min", "f[2,3,4]", known=(([[1.0, 2.0], [4.0, 3.0]],), [1.0, 3.0]), axes=(1,)),
    s("any", "b[2,3,4]", axes=(1,), type="bool",
      known=(([[True, False], [False, False]],), [True, False])),
    s("all", "b[2,3,4]", axes=(1,), type="bool",
      known=(([[True, True], [True, False]],), [True, False])),
    s("argmax", "f[2,3,4]", axes=(1,), type="i32",
      known=(([[1.0, 5.0, 5.0], [2.0, 1.0, 0.0]],), [1, 0])),
    s("fold", "f[2,3,4]", known=(([[1.0, 2.0], [3.0, 5.0]],), [4.0, 7.0])),
    s("fold", "f[2,3,4]", known=(([[1.0, 2.0], [3.0, 5.0]],), 5.0), monoid_of="maximum", rank=2),
    s("fold", "f[4,3]", known=(([2.0, 3.0],), 6.0), monoid_of="mul"),
    s("fold", "b[2,3]", monoid_of="logical_or", type="bool"),
    s("allreduce", "f[2,3]", known=(([1.0, 2.0],), [1.0, 2.0])),  # of one worker
    s("einsum", "f[2,3]", "f[3,4]", labels="ab,bc->ac",
      known=(([[1.0, 2.0]], [[3.0], [4.0]]), [[11.0]])),
    s("einsum", "f[2,3]", "f[3]", "f[2,4]", labels="ab,b,ac->ca"),
    s("einsum", "f[2,3]", labels="ab->b"),
    s("einsum", "f[2,3]", "f[4]", labels="ab,c->c"),
    s("einsum", "f[3]", "f[3]", labels="a,a->a"),
    s("einsum", "f[]", "f[3]", labels=",a->a"),
    s("einsum", "f[2,3]", labels="ab->ba"),
    s("expand", "f[2,3]", labels="ab->cadb", sizes=(T, 2), known=(N, N)),
    s("expand", "f[]", labels="->a", sizes=(3,), known=((2.0,), [2.0, 2.0, 2.0])),
    s("transpose", "f[2,3,4]", order=(2, 0, 1)),
    s("transpose", "f[2,3]", order=(1, 0), known=(([[1.0, 2.0]],), [[1.0], [2.0]])),
    s("reshape", "f[2,3]", shape=(3, 2),
      known=(([[1.0, 2, 3], [4, 5, 6]],), [[1.0, 2], [3, 4], [5, 6]])),
    s("reshape", "f[2,5]", shape=(T, 2)),
    s("cut", "f[2,5,3]", axis=1, start=minimum(t, 1), size=3),
    s("cut", "f[5,3]", axis=0, start=1, size=2,
      known=(([[1.0], [2], [3], [4], [5]],), [[2.0], [3.0]])),
    s("pad", "f[2,3]", axis=1, before=T - 3, after=1),
    s("pad", "f[3]", axis=0, before=1, after=0, value=-1.0,
      known=(([1.0, 2.0],), [-1.0, 1.0, 2.0])),
    s("concat", "f[2,3]", "f[1,3]", "f[4,3]", axis=0),
    s("concat", "f[2]", "f[3]", axis=0, known=(([1.0], [2.0, 3.0]), [1.0, 2.0, 3.0])),
    s("flip", "f[2,3]", axis=1, known=(([[1.0, 2.0, 3.0]],), [[3.0, 2.0, 1.0]])),
    s("cumsum", "f[2,3]", axis=1, known=(([[1.0, 2.0, 3.0]],), [[1.0, 3.0, 6.0]])),
    s("cumsum", "i[3,2]", axis=0, type="i32"),
    s("cumsum", "f[2,3]", axis=1, reverse=True,
      known=(([[1.0, 2.0, 3.0]],), [[6.0, 5.0, 3.0]])),
    s("cumprod", "f[2,3]", axis=1, known=(([[1.0, 2.0, 3.0]],), [[1.0, 2.0, 6.0]])),
    s("cumprod", "i[3,2]", axis=0, type="i32"),
    s("cummax", "f[2,3]", axis=1, known=(([[1.0, 3.0, 2.0]],), [[1.0, 3.0, 3.0]])),
    s("cummax", "i[3,2]", axis=0, type="i32"),
    s("sort", "f[2,3,4]", axis=1, known=(([[3.0, 1.0, 2.0]],), [[1.0, 2.0, 3.0]])),
    s("sort", "i[5]", axis=0, type="i32"),
    s("scatter", "f[2,3]", "i[2,4]", "f[2,4]", axis=1,
      known=(([[1.0, 2.0, 3.0]], np.array([[2, 0, 2, 5]], np.int32), [[4.0, 5.0, 6.0, 7.0]]),
             [[5.0, 2.0, 6.0]])),
    s("scatter", "f[3,2]", "i[4,2]", "f[4,2]", axis=0, reduce="add",
      known=(([[1.0], [2.0]], np.array([[1], [1], [-1]], np.int32), [[4.0], [5.0], [6.0]]),
             [[1.0], [11.0]])),
    s("scatter", "f[2,3]", "i[2,0]", "f[2,0]", axis=1),
    s("scatter", "f[2,3]", "i[2,1]", "f[2,1]", axis=1,
      known=(([[1.0, 2.0], [3.0, 4.0]], np.array([[1], [2]], np.int32), [[5.0], [6.0]]),
             [[1.0, 5.0], [3.0, 4.0]])),
    s("scatter", "f[3,2]", "i[4,2]", "f[4,2]", axis=0, reduce="min",
      known=(([[1.0], [2.0]], np.array([[1], [1], [-1]], np.int32), [[4.0], [0.5], [0.0]]),
             [[1.0], [0.5]])),
    s("scatter", "f[2,3]", "i[2,1]", "f[2,1]", axis=1, reduce="max"),
    s("discounted_sum", "f[4,3]", gamma=0.5, known=(([[1.0], [2.0], [4.0], [8.0]],), [4.0])),
    s("discounted_sum", "f[2,3]", gamma=0.9, axis=1),
    s("discounted_sum", "f[0,3]", gamma=0.9),
    s("discounts", "f[2,3]", gamma=0.5, axis=1, size=T),
    s("discounts", "f[]", gamma=0.5, axis=0, size=3, known=((8.0,), [8.0, 4.0, 2.0])),
    s("softmax", "f[2,3]", axis=1, known=(([[0.0, 1.0986122886681098]],), [[0.25, 0.75]])),
    s("softmax", "f[3,2]", axis=0),
    s("softmax", "f[0,2]", axis=0),
    s("log_softmax", "f[2,3]", axis=1, known=(([[0.0, 0.0]],), [[-0.6931471805599453] * 2])),
    s("log_softmax", "f[3,2]", axis=0),
    s("attention", "f[2]", "f[3,2]", "f[3,4]", scores="d,nd->n", values="n,nd->d", axis=0,
      known=(([1.0, 0.0], [[0.0, 9.0], [1.0986122886681098, 0.0]], [[4.0], [8.0]]), [7.0])),
    s("attention", "f[3,2]", "f[5,2]", "f[5,4]", scores="gd,nd->gn", values="gn,ne->eg", axis=1,
      length=t + 1),
    s("attention", "f[2,3,2]", "f[5,2,2]", "f[2,5,4]", "b[5]", scores="kgd,nkd->kng",
      values="kng,kne->kge", axis=1, cap=2.0, mask="n"),
    s("attention", "f[2,3,2]", "f[2,5,2]", "f[2,5,4]", "b[5,2]", scores="kgd,knd->kgn",
      values="kgn,kne->kge", axis=2, mask="nk", length=T - 1),
    s("pick", "f[2,5]", axis=1, at_=t),
    s("pick", "f[2,5]", axis=1, at_=t - 3, known=(([[1.0, 2.0, 3.0]],), [0.0])),  # at -1: outside
    s("pick", "f[3,2]", axis=0, at_=maximum(t - 3, 0), known=(([[1.0], [2.0]],), [1.0])),
    s("pick", "f[0,2]", axis=0, at_=0),
    s("place", "f[2,3]", axis=1, at_=t, size=4),
    s("place", "f[]", axis=0, at_=t, size=T, known=((3.0,), [0.0, 0.0, 3.0, 0.0, 0.0])),
    s("take", "f[2,3,4]", "i[5]", labels="abc,d->adc", axis="b"),
    s("take", "f[3,4]", "i[2,5]", labels="ab,cd->bcd", axis="a"),
    s("take", "f[2,3]", "i[2]", labels="ba,b->b", axis="a",
      known=(([[1.0, 2.0], [3.0, 4.0]], np.array([1, 0], np.int32)), [2.0, 3.0])),
    s("take", "f[3]", "i[]", labels="a,->", axis="a"),
    s("take", "f[3,2]", "i[4,2]", labels="ab,cb->bc", axis="a"),
    s("take", "f[3,2,4]", "i[2]", labels="abc,b->bc", axis="a"),
    s("take", "f[3]", "i[3]", labels="a,b->b", axis="a"),
    s("searchsorted", "f[4]", "f[2,3]", labels="a,bc->bc", axis="a", type="i32"),
    s("searchsorted", "f[2,5]", "f[3,2]", labels="ba,cb->bc", axis="a", equal=True, type="i32"),
    s("searchsorted", "f[0]", "f[2]", labels="a,b->b", axis="a", type="i32"),
    s("searchsorted", "f[3]", "f[4]", labels="a,b->b", axis="a", type="i32",
      known=(([1.0, 2.0, 2.0], [0.5, 2.0, 2.5, 9.0]), [0, 1, 3, 3])),
    s("searchsorted", "f[3]", "f[4]", labels="a,b->b", axis="a", equal=True, type="i32",
      known=(([1.0, 2.0, 2.0], [0.5, 2.0, 1.0, 9.0]), [0, 3, 1, 3])),
    s("argsort", "f[2,3,4]", axis=1, type="i32"),
    s("argsort", "f[5]", axis=0, type="i32", known=(([3.0, 1.0, 2.0, 1.0],), [1, 3, 2, 0])),
    s("topk", "f[2,3,4]", axis=2, size=2, type="i32"),
    s("topk", "f[2,5,3]", axis=1, size=T - 2, type="i32"),
    s("topk", "f[5]", axis=0, size=3, type="i32",
      known=(([1.0, 3.0, 2.0, 3.0, np.nan],), [4, 1, 3])),
    s("onehot", "i[2,4]", size=3, axis=1, type="f32"),
    s("onehot", "i[]", size=3, axis=0, to="f64", known=((np.int32(2),), [0.0, 0.0, 1.0])),
    s("windows", "f[7,2]", axis=0, sizes=(3,), strides=(2,)),
    s("windows", "f[2,4,5]", axis=1, sizes=(2, 3), strides=(1, 2)),
    s("windows", "f[4]", axis=0, sizes=(2,), strides=(1,),
      known=(([1.0, 2, 3, 4],), [[1.0, 2, 3], [2, 3, 4]])),
    s("windows", "f[2,8,7]", axis=1, sizes=(3, 2), strides=(2, 1), gaps=(2, 3)),
    s("windows", "f[5]", axis=0, sizes=(2,), strides=(1,), gaps=(3,),
      known=(([1.0, 2, 3, 4, 5],), [[1.0, 2], [4, 5]])),
    s("overlap", "f[2,3,2,2,4]", axis=1, sizes=(3, 2), strides=(2, 1), lengths=(8, 7), gaps=(2, 3)),
    s("overlap", "f[5,2]", axis=0, sizes=(5,), strides=(4,), lengths=(11,)),
    s("overlap", "f[3,3,2]", axis=0, sizes=(3,), strides=(2,), lengths=(8,)),
    s("overlap", "f[2,2,3,3,3]", axis=1, sizes=(2, 3), strides=(1, 2), lengths=(4, 7)),
    s("overlap", "f[2,3]", axis=0, sizes=(2,), strides=(1,), lengths=(4,),
      known=(([[1.0, 2, 3], [10, 20, 30]],), [1.0, 12, 23, 30])),
    s("const", value=2.5, shape=(2, T), known=((), np.full((2, 5), 2.5)), type="f32"),
    s("const", value=3, dtype="i32", type="i32"),
    s("data", key=DATA, known=((), [[1.0, 2.0], [3.0, 4.0]]), type="f32"),
    s("input", dtype="f32", shape=(2,), type="f32"),
    s("value", expr=2 * t + T, known=((), 9), type="i32"),
    s("value", expr=t // 2 % 2, dtype="f32", known=((), 1.0), type="f32"),
    s("uniform", id=1, key=(Sym("b"),), counter=(t,), shape=(2, 3), type="f32"),
    s("renumber", "i[2,3]", sizes=(2, 3), order=(1, 0), type="i32",
      known=(([0, 1, 2, 3, 4, 5],), [0, 3, 1, 4, 2, 5])),
    s("permutation", id=4, size=12, at_=t, key=(Sym("b"),), type="i32"),
    s("uniform", id=2, counter=(Sym("b"), t), type="f32"),
    s("uniform", id=3, counter=(t,), dtype="f64", type="f64"),
    s("merge", "f[2]", "f[2]", when=(Sym("c"), Sym("d"))),
    s("foreign", "f[2]", "f[3]", fn=MAPPED, out=0, dtype="f64", shape=(2,),
      known=(([1.0, 2.0], [3.0, 4.0]), [8.0, 9.0])),
    s("foreign", "f[2]", "f[3]", fn=MAPPED, out=1, dtype="f64", shape=()),
    s("call", "f[2]", fn=CALLED, results=(("f64", (2,)), ("bool", (2,))), type="(f64, bool)"),
    s("samples", "f[2,3,4]", "i[5]", fn=FUNCTION, results=(("f64", (5, 4)),), type="(f64)"),
    s("samples", "f[2,3]", "i[2,2]", fn=FUNCTION, results=(("f64", (2, 2)),), type="(f64)",
      order=(1, 0)),
    s("item", k=1, known=((([1.0], [2.0]),), [2.0])),
]  # fmt: skip


STRUCTURAL = ("input", "merge")  # the oracle and the backends know them by class


OUTSIDE = (*STRUCTURAL, "call", "item", "samples")
