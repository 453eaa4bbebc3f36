"""Types of elements: sums widen, branches are not narrowed, 64 bits are 64 bits, NaN wins."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS, everywhere
from recurra.errors import RecurraError, ShapeError
from recurra.ir.types import NUMPY_NAME, accumulator, join
from recurra.ops.reduction import Sum

NAN, INF = np.nan, np.inf


def test_sums_of_narrow_types_are_i32():
    ctx = rc.Context(dims="t")
    done = np.array([1, 1, 0, 1], bool)
    pixels = np.full((4, 4), 200, np.uint8)
    small = np.full((4, 3), -100, np.int8)
    with ctx as ((t, T),):
        d = rc.input(rc.boolean, (t,), name="d")
        o = rc.input(rc.u8[4], (t,), name="o")
        s = rc.input(rc.i8[3], (t,), name="s")
        rc.output(
            total=o.sum(),
            over_t=o[0:T].sum(axis=0),
            so_far=o[0 : t + 1].sum(axis=0),
            from_here=o[t:T].sum(axis=0),
            running=o.cumsum(),
            ends=d[0 : t + 1].sum(),
            ends_running=d[0:T].cumsum(),
            mean=o.mean(),
            share=d[0:T].mean(),
            weighted=rc.einsum("a,b->", s, s),
            squared=rc.einsum("a,a->", o, o),
            matrix=s @ s,
        )
    whole = pixels.astype(int)
    want = {
        "total": whole.sum(axis=1),
        "over_t": whole.sum(axis=0),
        "so_far": whole.cumsum(axis=0),
        "from_here": whole[::-1].cumsum(axis=0)[::-1],
        "running": whole.cumsum(axis=1),
        "ends": done.cumsum(),
        "ends_running": done.cumsum(),
        "weighted": [90000] * 4,
        "squared": [160000] * 4,
        "matrix": [30000] * 4,
    }
    inputs = {"d": done, "o": pixels, "s": small}
    for backend, found in everywhere(ctx, {T: 4}, inputs).items():
        for name, x in want.items():
            np.testing.assert_array_equal(found[name], x, err_msg=f"{name} on {backend}")
            assert found[name].dtype == np.int32, (name, backend)
        np.testing.assert_array_equal(found["mean"], [200.0] * 4)
        assert found["share"] == 0.75


def test_a_sum_too_narrow_for_its_terms_is_no_equation():
    with rc.Context(dims="t") as ((t, _),):
        o = rc.input(rc.u8[4], (t,), name="o")
        with pytest.raises(ShapeError, match=r"sum: sums of u8 are i32; cast the operand first"):
            o.apply(Sum(axes=(0,)), o)


def test_an_axis_of_size_one_of_small_numbers_broadcasts():
    ctx = rc.Context(dims="t")
    column, row = np.array([[200], [100]], np.uint8), np.array([[1, 2, 3]], np.uint8)
    with ctx as ((t, T),):
        rc.output(y=rc.constant(column) + rc.constant(row))
    for backend, found in everywhere(ctx, {T: 1}).items():
        assert found["y"].dtype == np.uint8, backend
        np.testing.assert_array_equal(found["y"], column + row)


def test_means_of_halves_have_intermediates_of_32_bits():
    ctx = rc.Context(dims="t")
    x = np.full((2, 3000), 100.0, np.float16)
    with ctx as ((t, T),):
        rc.output(mean=rc.input(rc.f16[3000], (t,), name="x").mean())
    for backend, found in everywhere(ctx, {T: 2}, {"x": x}).items():
        assert found["mean"].dtype == np.float16, backend
        np.testing.assert_array_equal(found["mean"], x.mean(axis=1))


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        ("bool", "u8", "u8"),
        ("u8", "i8", "i32"),
        ("u8", "u32", "u32"),
        ("i8", "u32", "i64"),
        ("u32", "i32", "i64"),
        ("i32", "i64", "i64"),
        ("i64", "f16", "f16"),
        ("bf16", "f16", "f32"),
        ("f32", "f64", "f64"),
    ],
)
def test_operands_meet_in_a_type_that_holds_both(a: str, b: str, both: str):
    assert join(a, b) == join(b, a) == both


def test_accumulators():
    kinds = ("bool", "u8", "i8", "u32", "i32", "i64", "f16", "bf16", "f32", "f64")
    assert " ".join(map(accumulator, kinds)) == "i32 i32 i32 u32 i32 i64 f16 bf16 f32 f64"


# ---- branches


def test_integers_go_into_float_branches():
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        k = rc.input(rc.i32, (t,), name="k")
        y = rc.like(rc.f32, (t,))
        y[0] = 1
        y[t] = k
        z = rc.like(rc.f64, (t,))
        z[t] = np.float64(0.1)
        d = rc.like(rc.boolean, (t,))
        d[0] = 1
        d[t] = False
        rc.output(y=y, z=z, d=d)
    for found in everywhere(ctx, {T: 3}, {"k": np.array([7, 8, 9], np.int32)}).values():
        np.testing.assert_array_equal(found["y"], np.array([1, 8, 9], np.float32))
        np.testing.assert_array_equal(found["z"], [0.1] * 3)
        np.testing.assert_array_equal(found["d"], [True, False, False])
        assert found["z"].dtype == np.float64


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (rc.i32, 1.9, r"y is i32\[\], this branch is 1.9\n.*\.cast\(\"i32\"\)"),
        (rc.boolean, 0.5, r"y is bool\[\], this branch is 0.5"),
        (rc.boolean, 2, r"a value that bool cannot hold"),
        (rc.u8, 300, r"a value that u8 cannot hold"),
        (rc.i32, np.array([0.5]).sum(), r"this branch is np.float64\(0.5\)"),
        (rc.f32, 1e300, r"a value that f32 cannot hold"),
    ],
)
def test_a_branch_is_not_narrowed(kind: rc.Type, value: object, text: str):
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        y = rc.like(kind, (t,), name="y")
        with pytest.raises(ShapeError, match=text):
            y[t] = value


# ---- casts


@pytest.mark.parametrize("to", ["u8", "i8", "i32", "i64", "bool"])
@pytest.mark.parametrize("of", ["f16", "bf16", "f32", "f64"])
def test_floats_are_cut_off_and_held_at_the_ends(of: str, to: str):
    ctx = rc.Context(dims="t")
    given = [0.0, -0.9, 1.75, -1.75, 127.0, 128.0, 300.0, -300.0, 3e38, -3e38, INF, -INF, NAN]
    x = np.array(given, np.float32)
    with ctx as ((t, T),):
        rc.output(y=rc.input(rc.f32, (t,), name="x").cast(of).cast(to))
    info = np.iinfo(NUMPY_NAME[to]) if to != "bool" else None
    if info is None:
        want = [v != 0 for v in given]
    else:
        whole = [0 if v != v else v if abs(v) == INF else int(v) for v in given]
        want = [int(min(max(v, info.min), info.max)) for v in whole]
    with np.errstate(over="ignore"):
        for backend, found in everywhere(ctx, {T: len(given)}, {"x": x}).items():
            assert found["y"].tolist() == want, backend


# ---- truth values


@pytest.mark.parametrize("what", ["x - x", "-x", "x % x"])
def test_truth_values_have_no_difference(what: str):
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.boolean, (t,), name="x")
        with pytest.raises(ShapeError, match="the operand has type bool; cast it"):
            eval(what, {"x": x})


# ---- 64 bits


def test_numbers_of_64_bits_on_every_backend():
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.like(rc.f64, (t,))
        x[0] = 1.0
        x[t + 1] = x + 1e-9
        n = rc.input(rc.i64, (t,), name="n")
        a = rc.input(rc.f64[2], (t,), name="a")
        host = rc.call(lambda v: v * 2, rc.f64[2], a, pure=True)
        loss = (x * a.sum())[0:T].sum()
        loss.backward(wrt=[a])
        rc.output(
            last=x[T - 1], n=n + 1, sums=n[0 : t + 1].sum(), host=host, grad=a.grad, at=a.argmax()
        )
    inputs = {"n": np.array([2**40, 5, 6]), "a": np.array([[0.1, 0.2]] * 3)}
    program = {}
    for backend, found in everywhere(ctx, {T: 3}, inputs).items():
        assert found["last"].dtype == found["grad"].dtype == np.float64, backend
        assert found["last"] - 1.0 == pytest.approx(2e-9, rel=1e-6)
        np.testing.assert_array_equal(found["n"], inputs["n"] + 1)
        np.testing.assert_array_equal(found["sums"], inputs["n"].cumsum())
        np.testing.assert_array_equal(found["host"], inputs["a"] * 2)
        program[backend] = found["grad"]
    np.testing.assert_allclose(program["jax"], program["interpreter"], rtol=1e-15)
    assert not jax.config.read("jax_enable_x64")  # of the process


def test_functions_of_jax_keep_their_types_in_a_program_of_64_bits():
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.value(t)
        y = rc.jax_fn(lambda x: x + jax.numpy.arange(3) * jax.numpy.ones(3))(x)
        z = rc.jax_fn(lambda z: z * 2)(rc.value(t, "f64") + 1e-12)
        rc.output(y=y, z=z)
    assert (y.dtype, z.dtype) == ("f32", "f64")
    for backend, found in everywhere(ctx, {T: 2}).items():
        assert (found["y"].dtype, found["z"].dtype) == (np.float32, np.float64), backend
        np.testing.assert_array_equal(found["y"], [[0, 1, 2], [1, 2, 3]])
        assert found["z"][0] == 2e-12


def test_inputs_that_lie_right_are_read_in_64_bits():
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        rc.output(y=rc.input(rc.f64, (t,), name="x") * 1.0)
    given = np.full(3, 0.1)
    program = ctx.compile({T: 3}, backend="jax")
    for native in (False, True):
        y = program.run(inputs={"x": given}, native=native)["y"]
        assert y.dtype == np.float64
        np.testing.assert_array_equal(np.asarray(y), given)


def test_64_bits_go_through_a_checkpoint(tmp_path):
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        w = rc.nn.Parameter(rc.constant([1.0], "f64"), domain=(i,), name="w")
        (w * w).sum().backward()
        rc.optim.SGD([w], lr=1e-9).step()
        rc.output(w=w)
    program = ctx.compile({I: 4}, backend="jax")
    whole = program.run(folder=tmp_path / "a")["w"]
    assert whole.dtype == np.float64
    assert 0 < 1 - whole[3, 0] < 1e-8


# ---- NaN

ROWS = np.array(
    [[1, NAN, 3, NAN], [NAN, -INF, INF, 0], [2, 2, 1, 0], [-0.0, 0.0, -1, NAN]], np.float32
)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_nan_wins(dtype: str):
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32[4], (t,), name="x").cast(dtype)
        rc.output(
            max=x.max().cast("f32"),
            min=x.min().cast("f32"),
            argmax=x.argmax(),
            argsort=x.argsort(),
            clip=x.clip(-1.0, 2.0).cast("f32"),
            maximum=rc.maximum(x, 0.5).cast("f32"),
            minimum=rc.minimum(0.5, x).cast("f32"),
            relu=x.relu().cast("f32"),
            so_far=x[0 : t + 1].max(axis=0).cast("f32"),
            from_here=x[t:T].min(axis=0).cast("f32"),
            last_two=x[rc.max(t - 1, 0) : t + 1].max(axis=0).cast("f32"),
            over_t=x[0:T].max(axis=0).cast("f32"),
            sign=(x - x).abs().cast("f32"),
        )
    before = np.maximum(ROWS, np.vstack([ROWS[:1], ROWS[:-1]]))
    want = {
        "max": ROWS.max(axis=1),
        "min": ROWS.min(axis=1),
        "argmax": ROWS.argmax(axis=1),
        "argsort": ROWS.argsort(axis=1, kind="stable"),
        "clip": np.clip(ROWS, -1, 2),
        "maximum": np.maximum(ROWS, 0.5),
        "minimum": np.minimum(ROWS, 0.5),
        "relu": np.maximum(ROWS, 0),
        "so_far": np.maximum.accumulate(ROWS),
        "from_here": np.minimum.accumulate(ROWS[::-1])[::-1],
        "last_two": before,
        "over_t": ROWS.max(axis=0),
    }
    with np.errstate(invalid="ignore"):
        found = everywhere(ctx, {T: 4}, {"x": ROWS})
    for backend, results in found.items():
        for name, x in want.items():
            np.testing.assert_array_equal(results[name], x, err_msg=f"{name} on {backend}")


def test_what_is_not_itself_is_nan():
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32[4], (t,), name="x")
        rc.output(kept=rc.where(x == x, x, 0.0), lost=(x != x).sum(), ordered=(x <= x).sum())
    lost = np.isnan(ROWS).sum(axis=1)
    for backend, found in everywhere(ctx, {T: 4}, {"x": ROWS}).items():
        np.testing.assert_array_equal(
            found["kept"], np.nan_to_num(ROWS, nan=0, posinf=INF, neginf=-INF)
        )
        np.testing.assert_array_equal(found["lost"], lost, err_msg=backend)
        np.testing.assert_array_equal(found["ordered"], 4 - lost, err_msg=backend)


def test_the_first_of_equal_truth_values_is_the_largest():
    ctx = rc.Context(dims="t")
    x = np.array([[0, 1, 1], [0, 0, 0]], bool)
    with ctx as ((t, T),):
        rc.output(at=rc.input(rc.boolean[3], (t,), name="x").argmax())
    for found in everywhere(ctx, {T: 2}, {"x": x}).values():
        np.testing.assert_array_equal(found["at"], [1, 0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_unsigned_words_are_refused_or_right(backend: str):
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        u = rc.input(rc.u32, (t,), name="u")
        rc.output(u=u[0 : t + 1].sum())
    given = {"u": np.array([2**31, 2**30, 1], np.uint32)}
    if backend == "torch":
        with pytest.raises(RecurraError, match="torch cannot calculate"):
            ctx.compile({T: 3}, backend=backend).run(inputs=given)
        return
    found = ctx.compile({T: 3}, backend=backend).run(inputs=given)["u"]
    np.testing.assert_array_equal(found, given["u"].cumsum())
    assert found.dtype == np.uint32


def test_unsigned_words_that_are_only_read_are_refused_or_right_too():
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        u = rc.input(rc.u32[3], (t,), name="u")
        rc.output(at=u.argmax())
    given = {"u": np.array([[1, 2**31, 3], [4, 0, 0]], np.uint32)}
    for backend in ("numpy", "jax"):
        found = ctx.compile({T: 2}, backend=backend).run(inputs=given)["at"]
        assert found.tolist() == [1, 0]
    with pytest.raises(RecurraError, match="u is a tensor of unsigned 32-bit numbers"):
        ctx.compile({T: 2}, backend="torch").run(inputs=given)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_numbers_are_halves_beside_halves(dtype: str):
    """Also in a branch, and in a loop where every value is a scalar."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        fs = {
            "sigmoid": lambda x: x.sigmoid(),
            "silu": lambda x: x.silu(),
            "gelu": lambda x: x.gelu(),
            "erf": lambda x: x.erf(),
            "power": lambda x: 0.5 * x**1.5 + 0.25,
        }
        for name, f in fs.items():
            x = rc.like(getattr(rc, dtype), domain=(t,), name=name)
            x[0] = 0.7
            x[t] = f(x[t - 1])
            rc.output(**{name: x})
    found = everywhere(ctx, {T: 4})
    for backend, results in found.items():
        for name, x in results.items():
            assert x.dtype == NUMPY_NAME[dtype], (name, backend)
            want = found["interpreter"][name].astype(np.float32)
            np.testing.assert_allclose(x.astype(np.float32), want, rtol=2e-2, err_msg=name)


def test_a_number_beyond_halves_is_refused():
    with rc.Context(dims="t") as ((t, _),):
        x = rc.like(rc.f16, domain=(t,), name="x")
        with pytest.raises(ShapeError, match=r"the number has a value that f16 cannot hold"):
            x[t] = 1e6


def test_a_sigmoid_is_not_0_before_its_type_is():
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x")
        rc.output(log=x.sigmoid().log(), whole=x.sigmoid())
    x = np.array([-80, -30, -20, -10, 0, 10, 30, 200], np.float32)
    whole = 1 / (1 + np.exp(-x.astype(np.float64)))
    for backend, found in everywhere(ctx, {T: len(x)}, {"x": x}).items():
        np.testing.assert_allclose(found["whole"], whole, rtol=1e-5, err_msg=backend)
        np.testing.assert_allclose(found["log"], np.log(whole), rtol=1e-5, atol=1e-6)


def test_triangles_keep_the_type():
    ctx = rc.Context(dims="t")
    full = np.arange(9).reshape(3, 3) % 4 > 0
    with ctx as ((_, T),):
        rc.output(low=rc.constant(full).tril(), high=rc.constant(full).triu(1))
    for backend, found in everywhere(ctx, {T: 1}).items():
        for name, want in (("low", np.tril(full)), ("high", np.triu(full, 1))):
            np.testing.assert_array_equal(found[name], want, err_msg=backend)
            assert found[name].dtype == bool


def test_numbers_run_over_without_a_word():
    """Warnings are errors here: integers wrap around and 1 / 0 is inf, in loops as in arrays."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        state = rc.like(rc.i32, domain=(t,))
        state[0] = 12345
        state[t] = state[t - 1] * 1664525 + 1013904223
        x = rc.input(rc.f32[2], (t,), name="x")
        k = rc.input(rc.i8[2], (t,), name="k")
        rc.output(state=state, inverse=1 / x, rest=x % 0.0, quotient=k // rc.constant(-1, "i8"))
    state = [12345]
    for _ in range(3):
        state.append((state[-1] * 1664525 + 1013904223 + 2**31) % 2**32 - 2**31)
    given = {"x": np.array([[0, 1]] * 4, np.float32), "k": np.array([[-128, 3]] * 4, np.int8)}
    for found in everywhere(ctx, {T: 4}, given).values():
        assert found["state"].tolist() == state
        np.testing.assert_array_equal(found["inverse"], [[INF, 1]] * 4)
        np.testing.assert_array_equal(found["rest"], [[NAN, NAN]] * 4)
        np.testing.assert_array_equal(found["quotient"], [[-128, -3]] * 4)


def test_nan_comes_last_in_ranges_that_grow():
    """What such a range is padded with comes behind its NaN."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x")
        past, rest = x[0 : t + 1], x[t:T]
        rc.output(
            first=past.sort().index(0),
            last=past.sort().index(t),
            middle=past.sort().index(t // 2),
            greatest=past.sort(descending=True).index(0),
            place=past.argsort().index(t),
            least_of_rest=rest.sort().index(0),
        )
    x = np.array([NAN, INF, NAN, 1, -INF, INF, 2, NAN], np.float32)
    order = [np.sort(x[: k + 1]) for k in range(len(x))]
    want = {
        "first": [o[0] for o in order],
        "last": [o[-1] for o in order],
        "middle": [o[k // 2] for k, o in enumerate(order)],
        "greatest": [o[-1] for o in order],
        "place": [np.argsort(x[: k + 1], stable=True)[k] for k in range(len(x))],
        "least_of_rest": [np.sort(x[k:])[0] for k in range(len(x))],
    }
    for backend, found in everywhere(ctx, {T: len(x)}, {"x": x}).items():
        for name, values in want.items():
            np.testing.assert_array_equal(found[name], values, err_msg=f"{name} on {backend}")
