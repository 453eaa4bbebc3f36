"""Operators of integers, and those of floats that round: the numbers of NumPy on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import RecurraError
from recurra.ir.types import NUMPY_NAME
from recurra.reference import interpreter

INTEGERS = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a ** (b % 5),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << (b % 9),
    ">>": lambda a, b: a >> (b % 9),
    "~": lambda a, b: ~a + b,
    "7 //": lambda a, b: 7 // b + a,
    "-7 %": lambda a, b: -7 % b + a,
    "2 **": lambda a, b: 2 ** (b % 4) - a,
    "5 <<": lambda a, b: (5 << (b % 4)) ^ (1 & a),
    "<": lambda a, b: (a < b) ^ (a == b) | ~(a != b),
    "argmin": lambda a, b: (a - b).argmin(),
}


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("dtype", ["i32", "i8", "u8"])
def test_integers_are_those_of_numpy(dtype: str, backend: str) -> None:
    rng = np.random.default_rng(3)
    low = 0 if dtype == "u8" else -20
    a = rng.integers(low, 20, 40).astype(NUMPY_NAME[dtype])
    b = rng.integers(low, 20, 40).astype(NUMPY_NAME[dtype])
    b[b == 0] = 3
    ctx = rc.Context(num_dims=0)
    signed = dtype != "u8"
    laws = {n: f for n, f in INTEGERS.items() if signed or n not in ("-7 %", "argmin")}
    with ctx:
        x, y = rc.constant(a, dtype), rc.constant(b, dtype)
        rc.output(**{n: f(x, y) for n, f in laws.items()})
    got = ctx.run({}, backend=backend)
    with np.errstate(all="ignore"):
        for n, f in laws.items():
            np.testing.assert_array_equal(got[n], f(a, b), err_msg=f"{n} of {dtype}")
            assert got[n].dtype == np.asarray(f(a, b)).dtype or n == "argmin"


@pytest.mark.parametrize("backend", ["interpreter", "numpy", "jax", "torch"])
@pytest.mark.parametrize("dtype", ["i8", "u8", "i32", "i64"])
def test_powers_by_every_exponent(dtype: str, backend: str) -> None:
    """Exponents beyond six bits, and the least number of a type, whose negative it has not."""
    end = np.iinfo(NUMPY_NAME[dtype])
    times = np.array([0, 1, 63, 64, 65, 100, end.max, end.min, end.min + 1], NUMPY_NAME[dtype])
    bases = [0, 1, 2, 3, 5, *([] if dtype == "u8" else [-1, -2, -3])]
    ctx = rc.Context(num_dims=0)
    with ctx:
        x, n = rc.constant(np.array(bases, times.dtype)[:, None], dtype), rc.input(rc.i64[9])
        rc.output(y=x ** n.cast(dtype))
    given = {"n": times.astype(np.int64)}
    if backend == "interpreter":
        (got,) = interpreter.run(ctx.graph, {}, given).values()
    else:
        got = ctx.run({}, backend=backend, inputs=given)["y"]
    ring = 2 ** (8 * end.dtype.itemsize)
    for a, row in zip(bases, got, strict=True):
        for b, found in zip(times.tolist(), row.tolist(), strict=True):
            want = pow(a, b, ring) if b >= 0 else a ** (b % 2) if a in (1, -1) else 0
            assert (found - want) % ring == 0, f"{a} ** {b}"


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_the_size_of_truth_values(backend: str) -> None:
    ctx = rc.Context(num_dims=0)
    with ctx:
        rc.output(y=rc.constant([True, False]).abs())
    assert ctx.run({}, backend=backend)["y"].tolist() == [True, False]


def test_positions_are_whole_numbers() -> None:
    """Libraries disagree where half an element, or NaN, is."""
    with rc.Context(num_dims=0):
        halves = rc.constant([0.5, 1.0])
        for call in (lambda: halves.one_hot(3), lambda: halves.take(halves)):
            with pytest.raises(RecurraError, match="type f32, not an integer"):
                call()


SUMS = {
    "sum": (lambda x: x.sum(), lambda x: x.sum(dtype=np.int32)),
    "prod": (lambda x: x.prod(), lambda x: x.prod(dtype=np.int32)),
    "cumsum": (lambda x: x.cumsum(axis=1), lambda x: x.cumsum(1, np.int32)),
    "cumprod": (lambda x: x.cumprod(axis=1), lambda x: x.cumprod(1, np.int32)),
    "matmul": (lambda x: x @ x, lambda x: x @ x),
    "einsum": (lambda x: rc.einsum("a,ab->a", x[0], x), lambda x: np.einsum("a,ab->a", x[0], x)),
    "trace": (lambda x: rc.einsum("ab,ba->", x, x), lambda x: np.einsum("ab,ba->", x, x)),
}


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_sums_wrap_around_in_their_type(backend: str) -> None:
    """A wider type, which they become later, sees what they are."""
    x = np.array([[2**30 - 1, 7], [2**31 - 1, -(2**31)]], np.int32)
    ctx = rc.Context()
    with ctx:
        given = rc.input(rc.i32[2, 2], (), name="x")
        rc.output(**{name: f(given).cast("f64") for name, (f, _) in SUMS.items()})
    found = ctx.compile({}, backend=backend).run(inputs={"x": x})
    for name, (_, want) in SUMS.items():
        np.testing.assert_array_equal(found[name], want(x).astype(float), err_msg=name)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_floats_are_divided_as_in_numpy(backend: str) -> None:
    a = np.array([7.0, -7.0, 7.0, -7.0, 1.0, 0.3], np.float32)
    b = np.array([2.0, 2.0, -2.0, -2.0, 0.1, 0.1], np.float32)
    ctx = rc.Context(num_dims=0)
    with ctx:
        x, y = rc.constant(a), rc.constant(b)
        rc.output(q=x // y, r=x % y, smallest=x.argmin())
    got = ctx.run({}, backend=backend)
    np.testing.assert_array_equal(got["q"], a // b)
    np.testing.assert_allclose(got["r"], a % b, rtol=1e-6)
    assert got["smallest"] == 1


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_what_has_no_value_has_a_stated_one(backend: str) -> None:
    """Quotients by 0, negative powers, and shifts by less than nothing or more than all bits."""
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        k = rc.input(rc.i32, (t,), name="k")
        rc.output(q=7 // (k * 0), r=k % (k * 0), p=2**k, one=(-1) ** k, left=1 << k, right=k >> k)
    k = np.array([-3, 0, 2, 40], np.int32)
    want = {
        "q": [0, 0, 0, 0],
        "r": [0, 0, 0, 0],
        "p": [0, 1, 4, 0],
        "one": [-1, 1, 1, 1],
        "left": [0, 1, 4, 0],
        "right": [-1, 0, 0, 0],
    }
    for got in (
        ctx.compile({T: 4}, backend=backend).run(inputs={"k": k}),
        interpreter.run(ctx.graph, {"T": 4}, {"k": k}),
    ):
        assert {n: x.tolist() for n, x in got.items()} == want


def test_bits_of_floats_are_refused() -> None:
    with rc.Context(num_dims=0):
        with pytest.raises(rc.errors.ShapeError, match="have type f32, not an integer"):
            rc.constant(1.0) ^ 2
        with pytest.raises(rc.errors.ShapeError, match="type bool"):
            rc.constant(True) // True


# ---- an index in a narrow type


def narrow(write: Any) -> rc.Context:
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.like(rc.u8, (t,))
        write(x, t, T)
        rc.output(x=x)
    return ctx


def at(*places: Any) -> Any:
    def write(x: Any, t: Any, T: Any) -> None:
        *most, (where, value) = [p(t, T) for p in places]
        for place, v in most:
            x[place] = v
        x[where] = value

    return write


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (at(lambda t, T: (t, t)), "t has a value that u8 cannot hold"),
        (at(lambda t, T: (t, T)), "at T=300 it is 300; u8 holds whole numbers from 0 to 255"),
        (at(lambda t, T: (t, t - 1)), "at t=0 it is -1; u8 holds"),
        (at(lambda t, T: (t, rc.constant(0, "u8") + t)), "at t=256 it is 256; u8 holds"),
        (at(lambda t, T: (t, rc.value(t, "u8")[0:3].max())), None),
        (at(lambda t, T: (t, rc.value(t, "u8")[0:T].max())), "it is 256; u8 holds"),
        (at(lambda t, T: (t < 256, t), lambda t, T: (t, 0)), None),
        (at(lambda t, T: (t, rc.min(t, 255))), None),
        (at(lambda t, T: (t, t % 256)), None),
        (at(lambda t, T: (t, rc.value(t, "i32").cast("u8"))), None),
    ],
)
def test_an_index_fits_its_type(write: Any, text: str | None) -> None:
    ctx = narrow(write)
    if text is None:
        ctx.compile({"T": 300}, backend="numpy")
    else:
        with pytest.raises(RecurraError) as e:
            ctx.compile({"T": 300}, backend="numpy")
        assert text in str(e.value)
        assert '.cast("u8")' in str(e.value)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (lambda t: rc.value(t * 10**9), "1000000000*t has a value that i32 cannot hold"),
        (lambda t: rc.value(t * 10**9, "f64"), "at t=3 it is 3000000000"),
        (lambda t: rc.value(t * -(10**9), "i64"), "at t=3 it is -3000000000"),
        (lambda t: rc.value((t * 10**9) // 3, "i32"), "1000000000*t has a value"),
        (lambda t: t * 10**9 * rc.constant(0.5), "at t=3 it is 3000000000"),
    ],
)
def test_an_index_that_is_counted_in_32_bits_fits_them(number: Any, told: str) -> None:
    """It wrapped around without a word, also where its type has 64 bits."""
    with (ctx := rc.Context(num_dims=1)) as (t, T):
        rc.output(y=number(t))
    with pytest.raises(RecurraError) as e:
        ctx.compile({T: 4}, backend="numpy")
    assert told in str(e.value)
    assert ctx.run({T: 1}, backend="numpy")["y"].tolist() == [0.0]


def test_an_index_is_made_of_numbers_that_a_machine_has() -> None:
    with rc.Context(num_dims=1) as (t, _), pytest.raises(RecurraError) as e:
        t * 10**20
    assert "the index has the number 100000000000000000000" in str(e.value)
    assert 'rc.value(t, "f64") and 1e+20' in str(e.value)


def test_large_numbers_of_dims_are_computed_as_such() -> None:
    with (ctx := rc.Context(num_dims=1)) as (t, T):
        rc.output(whole=rc.value(t, "i64") * 10**9, bound=rc.value(T * 10**9, "f64"))
    got = ctx.run({T: 4}, backend="numpy")
    assert got["whole"].tolist() == [0, 10**9, 2 * 10**9, 3 * 10**9]
    assert got["bound"] == 4e9


DECIMALS = {
    "f32": np.array([0.5, 1.5, -2.5, 123.456, -0.049, 12345.678, 15.0, 25.0], np.float32),
    "f64": np.array([0.5, 1.5, -2.5, 123.456, -0.049, 12345.678, 15.0, 25.0]),
    "i32": np.array([5, 15, -25, 123456787, -123456785, 49, 50, 51], np.int32),
    "i8": np.array([5, 15, -25, 127, -128, 49, 50, 51], np.int8),
    "i64": np.array([5, 15, -25, 2**53 + 7, -(2**53) - 5, 49, 50, 51]),
}


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("dtype", DECIMALS)
def test_rounds_to_decimals_that_are_a_number_or_an_index(dtype: str, backend: str) -> None:
    """An index expression of decimals was refused; large integers lost their last digits."""
    x = DECIMALS[dtype]
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        y, N = rc.constant(x, dtype), rc.bound("N")
        rc.output(**{str(d): y.round(d) for d in (0, 1, 2, -1, -2)})
        rc.output(bound=y.round(N - 3), each=y.round(1 - t), far=y.round(-400), fine=y.round(400))
    found = ctx.run({T: 4, N: 2}, backend=backend)
    for d in (0, 1, 2, -1, -2):
        np.testing.assert_allclose(found[str(d)], _rounded(x, d), rtol=1e-6, err_msg=str(d))
        if d <= 1:
            np.testing.assert_allclose(found["each"][1 - d], _rounded(x, d), rtol=1e-6)
    np.testing.assert_allclose(found["bound"], _rounded(x, -1), rtol=1e-6)
    assert (found["far"] == 0).all()
    np.testing.assert_array_equal(found["fine"], x)


def _rounded(x: np.ndarray, decimals: int) -> np.ndarray:
    """np.round, in whole numbers where x is of them: NumPy goes by way of floats."""
    if x.dtype.kind == "f" or decimals >= 0:
        return np.round(x, decimals)
    return np.array([round(int(k), decimals) for k in x]).astype(x.dtype)


@pytest.mark.parametrize("decimals", [2.5, "two", None])
def test_decimals_that_are_no_number(decimals: Any) -> None:
    with rc.Context(dims="t"), pytest.raises(RecurraError, match="how many decimals"):
        rc.constant([1.0]).round(decimals)
