"""Every operator of arrays without axes, and with axes of no and of one element, against NumPy.

What NumPy refuses is refused; all else has NumPy's value and shape on every backend.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.analysis.safety import check_safety
from recurra.errors import RecurraError
from recurra.ir.types import SHORT_NAME, Type
from recurra.ops.contraction import numpy_einsum

SHAPES = [(), (0,), (1,), (0, 3), (3, 0), (2, 1), (1, 0, 2)]
Pair = tuple[Callable[..., Any], Callable[..., Any]]


def pair(f: Callable[..., Any]) -> Pair:
    return f, f


def on(x: np.ndarray, axis: int) -> int:
    """An axis that there is: NumPy gives an array without axes one."""
    return range(x.ndim)[axis]


def softmax(x: np.ndarray) -> np.ndarray:
    axis = on(x, -1)
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def taken(x: np.ndarray, i: Any) -> np.ndarray:
    return np.take(x, i, axis=on(x, 0), mode="clip")


def discounted(x: np.ndarray, axis: int = 0) -> np.ndarray:
    rows = np.moveaxis(x, axis, 0)
    return sum((0.5**k * row for k, row in enumerate(rows)), np.zeros(rows.shape[1:], x.dtype))


FLOATS: dict[str, Pair] = {
    "exp": (lambda x: x.exp(), np.exp),
    "log": (lambda x: x.log(), np.log),
    "tanh": (lambda x: x.tanh(), np.tanh),
    "sigmoid": (lambda x: x.sigmoid(), lambda x: 1 / (1 + np.exp(-x))),
    "relu": (lambda x: x.relu(), lambda x: np.maximum(x, 0)),
    "sqrt": (lambda x: x.sqrt(), np.sqrt),
    "square": (lambda x: x.square(), np.square),
    "sin": (lambda x: x.sin(), np.sin),
    "cos": (lambda x: x.cos(), np.cos),
    "floor": (lambda x: x.floor(), np.floor),
    "softmax": (lambda x: x.softmax(), softmax),
    "log_softmax": (lambda x: x.log_softmax(), lambda x: np.log(softmax(x))),
    "quotient": pair(lambda x: (1 / x) / (x + 1)),
    "discounted": (lambda x: x.discounted_sum(0.5), discounted),
    "detach": (lambda x: x.detach(), np.positive),
    "power": pair(lambda x: x**1.5),
    "where": (
        lambda x: rc.where(x > 1, x, -x),
        lambda x: np.where(x > 1, x, -x),
    ),
    "to integers": (lambda x: x.cast("i32"), lambda x: x.astype(np.int32)),
}
NUMBERS: dict[str, Pair] = {
    "abs": (lambda x: x.abs(), np.abs),
    "negative": pair(lambda x: -x),
    "arithmetic": pair(lambda x: (x + 1) * x - x % 2),
    "floor division": pair(lambda x: x // 2),
    "comparisons": pair(lambda x: (x > 1) ^ (x <= 2) ^ (x == x)),
    "clip": (lambda x: x.clip(1, 2), lambda x: np.clip(x, 1, 2)),
    "maximum": (lambda x: rc.maximum(x, 1), lambda x: np.maximum(x, 1)),
    "minimum": (lambda x: rc.minimum(x, 1), lambda x: np.minimum(x, 1)),
    "mean": pair(lambda x: x.mean()),
    "sum": pair(lambda x: x.sum()),
    "max": pair(lambda x: x.max()),
    "min": pair(lambda x: x.min()),
    "cumsum": (lambda x: x.cumsum(), lambda x: np.cumsum(x, axis=on(x, 0))),
    "argmax": (lambda x: x.argmax(), lambda x: x.argmax(axis=on(x, -1))),
    "argmin": (lambda x: x.argmin(), lambda x: x.argmin(axis=on(x, -1))),
    "argsort": (lambda x: x.argsort(), lambda x: x.argsort(axis=on(x, -1), kind="stable")),
    "flip": (lambda x: x.flip(), np.flip),
    "transpose": pair(lambda x: x.transpose()),
    "flat": (lambda x: x.reshape(int(np.prod(x.shape))), lambda x: x.reshape(-1)),
    "one more axis": (lambda x: x.expand(1), lambda x: x[None]),
    "copies": (lambda x: x.expand(2), lambda x: np.broadcast_to(x, (2, *x.shape))),
    "no copies": (lambda x: x.expand(0), lambda x: np.broadcast_to(x, (0, *x.shape))),
    "first": pair(lambda x: x[0]),
    "last": pair(lambda x: x[-1]),
    "cut": pair(lambda x: x[0:1]),
    "too long a cut": pair(lambda x: x[1:9]),
    "empty cut": pair(lambda x: x[0:0]),
    "take": (lambda x: x.take(0), lambda x: taken(x, 0)),
    "take some": (lambda x: x.take(rc.constant([0, 0])), lambda x: taken(x, [0, 0])),
    "concat": (lambda x: rc.concat([x, x]), lambda x: np.concatenate([x, x])),
    "stack": (lambda x: rc.stack([x, x]), lambda x: np.stack([x, x])),
    "product": pair(lambda x: x @ x.T),
    "contraction": (lambda x: rc.einsum("a,a->", x, x), lambda x: np.einsum("a,a->", x, x)),
}
TRUTHS: dict[str, Pair] = {
    "any": pair(lambda x: x.any()),
    "all": pair(lambda x: x.all()),
    "not": pair(lambda x: ~x),
    "logic": pair(lambda x: (x & ~x) | (x ^ True)),
    "sum": pair(lambda x: x.sum()),
    "to floats": (lambda x: x.cast("f32"), lambda x: x.astype(np.float32)),
}
INTEGERS: dict[str, Pair] = {
    "bits": pair(lambda x: ((x << 2) >> 1) & 7 | 8 ^ x),
    "not": pair(lambda x: ~x),
    "one hot": (lambda x: x.one_hot(3), lambda x: np.eye(3, dtype=np.float32)[x % 3]),
    "power": pair(lambda x: x**3),
}


def along(pairs: dict[str, Pair]) -> dict[str, Pair]:
    """Reductions along each axis, the first and the last, and one that is not there."""
    names = [n for n in pairs if n in ("sum", "mean", "max", "min", "any", "all")]
    return pairs | {
        f"{n} along {k}": (
            lambda x, n=n, k=k: getattr(x, n)(axis=k),
            lambda x, n=n, k=k: getattr(x, n)(axis=on(x, k)),
        )
        for n, k in itertools.product(names, (0, -1, 2))
    }


OPERATORS: dict[str, dict[str, Pair]] = {
    "float32": along(FLOATS | NUMBERS),
    "int32": along(NUMBERS | INTEGERS),
    "bool": along(TRUTHS),
}


def operand(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    if dtype == "bool":
        return rng.uniform(size=shape) > 0.5
    if dtype == "int32":
        return np.asarray(rng.integers(0, 3, size=shape), dtype)
    return np.asarray(rng.uniform(0.5, 2, size=shape), dtype)


def wanted(f: Callable[..., Any], x: np.ndarray) -> Any:
    """NumPy's answer, or None where it has none."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mean of an empty slice
            return np.asarray(f(x))
    except (ValueError, IndexError, TypeError):
        return None


def program(fs: dict[str, Callable[..., Any]], x: np.ndarray) -> rc.Context:
    ctx = rc.Context()
    with ctx:
        given = rc.input(Type(SHORT_NAME[x.dtype.name], x.shape), name="x")
        rc.output(**{f"y{k}": f(given) for k, f in enumerate(fs.values())})
    return ctx


def is_refused(f: Callable[..., Any], x: np.ndarray) -> bool:
    try:
        check_safety(program({"y": f}, x).graph, {})
    except RecurraError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("dtype", OPERATORS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numpy_has_the_same_answer(shape: tuple[int, ...], dtype: str) -> None:
    x = operand(shape, dtype)
    want = {name: wanted(f, x) for name, (_, f) in OPERATORS[dtype].items()}
    refused = {name for name, (f, _) in OPERATORS[dtype].items() if is_refused(f, x)}
    none = {name for name, y in want.items() if y is None}
    assert refused == none, f"only here {refused - none}, only by NumPy {none - refused}"
    asked = {name: f for name, (f, _) in OPERATORS[dtype].items() if name not in refused}
    ctx = program(asked, x)
    for backend in ("numpy", "jax", "torch"):
        with np.errstate(all="ignore"):  # the mean of nothing
            got = ctx.compile({}, backend=backend).run(inputs={"x": x})
        for k, name in enumerate(asked):
            found, y = np.asarray(got[f"y{k}"]), want[name]
            assert found.shape == y.shape, f"{name} on {backend}"
            assert (found.dtype == bool) == (y.dtype == bool), f"{name} on {backend}"
            message = f"{name} on {backend}"
            np.testing.assert_allclose(found, y, rtol=2e-5, atol=1e-6, err_msg=message)


@pytest.mark.parametrize(
    ("labels", "shapes"),
    [
        ("kgn,nkd->kgd", ((2, 2, 0), (0, 2, 8))),
        ("bkl,bla->b", ((2, 0, 0), (2, 0, 3))),
        ("ab,cb->", ((0, 2), (3, 2))),
    ],
)
def test_products_over_no_elements_are_zero(labels: str, shapes: tuple[tuple[int, ...], ...]):
    """Also if the memory of an operand of no elements holds no number."""
    nan = np.full(1, np.nan, np.float32)
    for new in itertools.product([True, False], repeat=2):
        xs = [
            np.lib.stride_tricks.as_strided(nan, s, [0] * len(s))  # as NumPy's own are
            if 0 in s and fresh
            else np.ones([max(n, 1) for n in s], np.float32)[tuple(slice(n) for n in s)]
            for s, fresh in zip(shapes, new, strict=True)
        ]
        np.testing.assert_array_equal(numpy_einsum(labels, *xs), 0)
