"""A bound of its own: the n of an n-step return is given at compile, and is then as if written."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from recurra.errors import RecurraError
from recurra.reference.interpreter import run
from recurra.runtime.executable import Executable


def program(n: int | None, given: int = 0, **options: object) -> Executable:
    """n-step values of a walk and their gradient; without `n` it is a bound, `given` at compile."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        N = rc.bound("N") if n is None else n
        w = rc.nn.Parameter(rc.constant(0.5), domain=(i,), name="w")
        r = rc.like(rc.f32[()], (i, t))
        r[i, 0] = w
        r[i, t + 1] = (r + rc.value(t) * w).sin()
        g = r[i, t : rc.min(t + N, T)].discounted_sum(0.9)
        late = rc.where(t >= N, r[i, rc.max(t - N, 0)], 0.0)
        loss = (g + late)[i, 0:T].square().mean()
        loss.backward()
        rc.optim.SGD([w], lr=0.01).step()
        rc.log(loss=loss, w=w)
        rc.output(g=g)
    bounds: dict[object, int] = {I: 3, T: 12}
    return ctx.compile(bounds if n is not None else {**bounds, N: given}, **options)


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5])
def test_a_bound_is_the_number_that_it_is_given(n: int):
    bound, literal = program(None, n), program(n)
    assert bound.equations == literal.equations
    assert bound.schedule_text == literal.schedule_text
    assert bound.source == literal.source
    assert bound.store_rows == literal.store_rows
    want = literal.run()
    for name, x in bound.run().items():
        np.testing.assert_array_equal(x, want[name])


def test_one_program_for_several_n():
    """Learning follows acting n - 1 steps later; the oracle agrees."""
    for n in (2, 4):
        p = program(None, n, backend="numpy")
        assert f"@-{n - 1}" in p.schedule_text
        want = run(p.source_graph, {"I": 3, "T": 12, "N": n})
        got = p.run()
        for name, o in p.logs.items():
            np.testing.assert_allclose(got[name], want[o], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_bound_is_a_number_too():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        N = rc.bound("N")
        x = rc.value(t)
        rc.output(y=x[t : rc.min(t + N, T)].sum() / (N + 0.0), n=rc.value(N * 2 + 1))
    got = ctx.run({T: 4, N: 2})
    np.testing.assert_array_equal(got["y"], [0.5, 1.5, 2.5, 1.5])
    assert got["n"] == 5
    with pytest.raises(RecurraError, match="no value is given for the bound N"):
        ctx.run({T: 4})
    with pytest.raises(RecurraError, match="the bound N cannot be 0"):
        ctx.run({T: 4, N: 0})


# ---- bounds that are made of others, and TimeRL's {T: d}


def lengths() -> tuple[rc.Context, dict[str, object]]:
    ctx = rc.Context(dims="b t n")
    with ctx as ((b, B), (t, T), (n, N)):
        done = rc.uniform((b, t)) < 0.3
        rc.output(done=done, points=rc.value(n))
    return ctx, {"B": B, "T": T, "N": N, "t": t, "done": done}


def test_a_bound_made_of_others() -> None:
    ctx, v = lengths()
    B, T, N = v["B"], v["T"], v["N"]
    for given, want in [
        ({B: 2, T: 3, N: B * T}, (2, 3, 6)),
        ({N: B + T // 2, T: B * B, B: np.int64(3)}, (3, 9, 7)),
    ]:
        got = ctx.run(given, backend="numpy")
        assert (*got["done"].shape, len(got["points"])) == want


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (lambda v: v["B"] * v["N"], r"the bound N is B\*N, and N has no number"),
        (lambda v: v["t"] + 1, r"the bound N is t\+1, and t has no number"),
        (lambda v: v["B"] - 2, "the bound N cannot be 0"),
    ],
)
def test_a_bound_is_one_number(write, what) -> None:
    ctx, v = lengths()
    with pytest.raises(RecurraError, match=what) as e:
        ctx.compile({v["B"]: 2, v["T"]: 3, v["N"]: write(v)}, backend="numpy")
    assert "N: 10" in str(e.value)


def test_no_bound_is_made_of_one_that_the_data_set() -> None:
    ctx, v = lengths()
    with pytest.raises(RecurraError, match=r"the bound N is 2\*T, and T has no number") as e:
        ctx.compile({v["B"]: 2, v["T"]: v["done"], v["N"]: v["T"] * 2}, backend="numpy")
    assert "the data set T, row by row, while the program runs" in str(e.value)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_recurrence_that_counts_down_from_the_length_of_its_row(backend: str) -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        d = rc.uniform((b, t)) < 0.3
        left = rc.like(rc.f32, (b, t))
        left[b, 0] = rc.value(T)
        left[b, t + 1] = left - 1.0
        rc.output(last=left[b, T - 1])
    with pytest.raises(RecurraError, match="kept at every point") as e:
        ctx.compile({B: 5, T: d}, backend=backend)
    assert "hint: give one, rc.until(.., max=500)" in str(e.value)
    got = ctx.run({B: 5, T: rc.until(d, max=500)}, backend=backend)
    np.testing.assert_array_equal(got["last"], np.ones(5))


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_truth_values_end_rows(backend: str) -> None:
    """{T: d} is {T: rc.until(d)}; a mean over rows of their lengths is written as the hint says."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        d = rc.uniform((b, t)) < 0.3
        with pytest.raises(RecurraError) as e:
            rc.value(T)[0:B].mean()
        hint = "n = rc.like(rc.f32, (b,)); n[b] = ..; and read n[0:B]"
        assert hint in str(e.value)
        n = rc.like(rc.f32, (b,))
        n[b] = rc.value(T)
        rc.output(mean=n[0:B].mean(), n=n, length=rc.value(T))
    for bound in (d, rc.until(d, max=9)):
        got = ctx.run({B: 5, T: bound}, backend=backend)
        np.testing.assert_array_equal(got["n"], got["length"])
        assert got["mean"] == got["n"].mean()
    with pytest.raises(RecurraError, match=r"rc\.until takes a tensor of truth values, not f32"):
        ctx.compile({B: 5, T: n}, backend=backend)


def test_a_bound_that_no_index_can_hold_is_refused() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.like(rc.f32[()], (t,))
        x[0] = 1.0
        x[t + 1] = x * 0.5
        rc.output(y=x[T - 1])
    with pytest.raises(RecurraError, match=r"(?s)the bound T is 1\d*\n.*counted in 32 bits"):
        ctx.compile({T: 10**20}, backend="numpy")


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((10**20,), "x would have 100000000000000000000 elements"),
        ((2**31,), "an axis has 2147483647 at most"),
        ((2**30, 2**30), "its sizes are 1073741824, 1073741824"),
    ],
)
def test_sizes_that_no_array_has_are_refused(
    shape: tuple[int, ...], told: str, backend: str
) -> None:
    with (ctx := rc.Context(dims="t")) as (t, T):
        x = rc.input(rc.f32[shape], (t,), name="x")
        rc.output(y=(x * x).sum())
    with pytest.raises(RecurraError) as e:
        ctx.compile({T: 3}, backend=backend)
    assert told in str(e.value)


def test_results_that_no_array_can_hold_are_refused() -> None:
    with (ctx := rc.Context(dims="b t")) as ((b, B), (t, T)):
        rc.output(y=rc.value(t) + rc.value(b))
    with pytest.raises(RecurraError, match="y would have 4611686014132420609 elements"):
        ctx.compile({B: 2**31 - 1, T: 2**31 - 1}, backend="numpy")


def test_a_range_of_numbers_that_no_array_has_is_refused() -> None:
    with rc.Context(dims="t"), pytest.raises(RecurraError, match=r"would have 1e\+20 elements"):
        rc.arange(10**20)
