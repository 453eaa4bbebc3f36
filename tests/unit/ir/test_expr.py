"""Index expressions: one normal form, whose text, value, substitution and isl form agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurra.ir import expr as ex
from recurra.ir.expr import FALSE, TRUE, Expr, Sym, evaluate, substitute, symbols
from recurra.ir.graph_parser import expression
from recurra.ir.types import is_shift
from recurra.polyhedral import isl

NAMES = ("t", "k", "T", "B")
t, k, T, B = map(Sym, NAMES)


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        (t + 1 - 1, "t"),
        (t - t, "0"),
        (1 + t, "t+1"),
        (T - t, "T-t"),
        (-t, "-t"),
        (3 - 2 * t, "-2*t+3"),
        ((t + 1) * T, "T+T*t"),
        (T * B * t, "B*(T*t)"),
        (T * (B * t), "B*(T*t)"),
        ((2 * t) * T - T * t * 2, "0"),
        (4 * k // 4, "k"),
        ((4 * k + t) // 4, "k+t//4"),
        ((4 * k + t + 5) % 4, "(t+1)%4"),
        ((t + 5) // 4, "(t+1)//4+1"),
        ((t - 1) // 4, "(t-1)//4"),
        (t // 1, "t"),
        (t % 1, "0"),
        (-(t // 4), "-(t//4)"),
        (5 - t % 4, "-(t%4)+5"),
        (t - t // 4 * 4, "t-4*(t//4)"),
        (ex.minimum(t + 5, T), "min(t+5,T)"),
        (ex.minimum(t + 5, t), "t"),
        (ex.minimum(ex.minimum(t, 9), T, 4), "min(t,4,T)"),
        (ex.maximum(t - 3, 0), "max(t-3,0)"),
        (ex.maximum(3, 5), "5"),
        (ex.compare("==", t + 1, T), "t == T-1"),
        (ex.compare("<", t, t + 1), "true"),
        (ex.all_of(ex.compare("==", t, 0), TRUE), "t == 0"),
        (
            ex.all_of(
                ex.all_of(ex.compare(">", t, 0), ex.compare("<", t, T)), ex.compare("==", k, 1)
            ),
            "(t > 0) & (t < T) & (k == 1)",
        ),
        (ex.any_of(ex.compare("==", t, 0), FALSE), "t == 0"),
        (
            ex.negate(ex.any_of(ex.compare("==", t, 0), ex.compare("<", k, 2))),
            "(t != 0) & (k >= 2)",
        ),
    ],
)
def test_normal_form(written: Expr | int, normal: str) -> None:
    assert str(written) == normal
    assert expression(normal) == written


def test_a_product_is_no_index() -> None:
    with pytest.raises(ValueError, match="multiplies two unknowns"):
        isl.isl_text(T * B)


@pytest.mark.parametrize(
    "bad", ["t//0", "t%T", "t**2", "t/2", "f(t)", "t is 0", "[t]", "t <", "t.x"]
)
def test_what_is_no_expression(bad: str) -> None:
    with pytest.raises(SyntaxError):
        expression(bad)


# ---- random expressions


def integers_() -> st.SearchStrategy[Expr | int]:
    leaf = st.sampled_from((t, k, T, B)) | st.integers(-6, 6)

    def grow(e: st.SearchStrategy[Expr | int]) -> st.SearchStrategy[Expr | int]:
        n = st.integers(1, 5)
        return st.one_of(
            st.builds(lambda a, b: ex.lin([(a, 1), (b, 1)]), e, e),
            st.builds(lambda a, b: ex.lin([(a, 1), (b, -1)]), e, e),
            st.builds(lambda a, c: ex.mul(a, c), e, st.integers(-4, 4)),
            st.builds(ex.div, e, n),
            st.builds(ex.mod, e, n),
            st.builds(ex.minimum, e, e),
            st.builds(ex.maximum, e, e, e),
        )

    return st.recursive(leaf, grow, max_leaves=8)


def conditions() -> st.SearchStrategy[Expr]:
    leaf = st.builds(
        ex.compare, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), affine, affine
    )

    def grow(c: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.builds(ex.all_of, c, c) | st.builds(ex.any_of, c, c, c) | st.builds(ex.negate, c)

    return st.recursive(leaf, grow, max_leaves=5)


affine = integers_()
values = affine | st.builds(ex.mul, affine, affine)
envs = st.fixed_dictionaries({n: st.integers(-9, 9) for n in NAMES})


@given(values | conditions())
def test_text_round_trips(e: Expr | int) -> None:
    assert expression(str(e)) == e


@given(affine, affine, affine, st.integers(1, 6), envs)
def test_constructors_mean_what_they_say(
    a: Expr | int, b: Expr | int, c: Expr | int, n: int, env: dict[str, int]
) -> None:
    x, y, z = (evaluate(e, env) for e in (a, b, c))
    assert evaluate(ex.lin([(a, 2), (b, -3), (c, 1)]), env) == 2 * x - 3 * y + z
    assert evaluate(ex.mul(a, b), env) == x * y
    assert evaluate(ex.div(a, n), env) == x // n
    assert evaluate(ex.mod(a, n), env) == x % n
    assert evaluate(ex.minimum(a, b, c), env) == min(x, y, z)
    assert evaluate(ex.maximum(a, b, c), env) == max(x, y, z)
    for op, f in ex._COMPARE.items():
        assert evaluate(ex.compare(op, a, b), env) == f(x, y)


@given(affine, affine, affine)
def test_ring_laws_are_equalities(a: Expr | int, b: Expr | int, c: Expr | int) -> None:
    assert ex.mul(a, b) == ex.mul(b, a)
    assert ex.mul(ex.mul(a, b), c) == ex.mul(a, ex.mul(b, c))
    assert ex.mul(a, ex.lin([(b, 1), (c, 1)])) == ex.lin([(ex.mul(a, b), 1), (ex.mul(a, c), 1)])


@given(conditions(), conditions(), envs)
def test_conditions_are_boolean_algebra(p: Expr, q: Expr, env: dict[str, int]) -> None:
    x, y = evaluate(p, env), evaluate(q, env)
    assert evaluate(ex.all_of(p, q), env) == (x and y)
    assert evaluate(ex.any_of(p, q), env) == (x or y)
    assert evaluate(ex.negate(p), env) == (not x)


@given(values | conditions(), affine, envs)
def test_substitution_is_evaluation(e: Expr | int, by: Expr | int, env: dict[str, int]) -> None:
    new = substitute(e, {"t": by})
    assert evaluate(new, env) == evaluate(e, {**env, "t": evaluate(by, env)})
    assert symbols(new) <= (symbols(e) - {"t"}) | symbols(by)


@given(values | conditions(), envs)
def test_evaluates_on_arrays(e: Expr | int, env: dict[str, int]) -> None:
    grid = np.arange(-4, 5)
    got = evaluate(e, {**env, "t": grid}, np)
    want = [evaluate(e, {**env, "t": int(v)}) for v in grid]
    np.testing.assert_array_equal(np.broadcast_to(got, grid.shape), want)


@given(affine, envs)
def test_isl_text_has_the_same_value(e: Expr | int, env: dict[str, int]) -> None:
    fixed = [f"{n} = {v}" for n, v in env.items()]
    points = isl.make_set(["y", *NAMES], [*fixed, f"y = {isl.isl_text(e)}"], [])
    assert points.dim_max_val(0).to_python() == evaluate(e, env)


@given(conditions(), envs)
def test_isl_text_has_the_same_truth(c: Expr, env: dict[str, int]) -> None:
    fixed = [f"{n} = {v}" for n, v in env.items()]
    holds = not isl.make_set(NAMES, [*fixed, isl.isl_text(c)], []).is_empty()
    assert holds == evaluate(c, env)


@given(affine, affine, st.integers(0, 6), envs)
def test_span_is_the_tightest_interval(
    lo: Expr | int, hi: Expr | int, size: int, env: dict[str, int]
) -> None:
    """Of s with lo <= s < hi, 0 <= s < T: either the exact ends or None, where s can be at all."""
    limits = (f"{isl.isl_text(lo)} <= s", f"s < {isl.isl_text(hi)}", "0 <= s", "s < T")
    found = isl.span("s", ("s",), limits, NAMES)
    env = {**env, "T": size}
    points = [s for s in range(size) if evaluate(lo, env) <= s < evaluate(hi, env)]
    if found is not None and points:
        assert (evaluate(found[0], env), evaluate(found[1], env)) == (points[0], points[-1] + 1)


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        (("q <= s", "s < T", "0 <= q", "q < T"), (Sym("q"), T)),
        (("4*q <= s", "s < 4*q + 4", "0 <= q"), (4 * Sym("q"), 4 * Sym("q") + 4)),
        (("s = T - 1 - q", "0 <= q", "q < T"), (T - 1 - Sym("q"), T - Sym("q"))),
        (("s <= q", "q < s + 5", "0 <= s", "s < T", "0 <= q", "q < T"),
         (ex.maximum(0, Sym("q") - 4), Sym("q") + 1)),
        (("q = floor(s/4)", "0 <= s", "s < T"), (4 * Sym("q"), ex.minimum(4 * Sym("q") + 4, T))),
        (("s < 0", "s > 0"), (0, 0)),
    ],
)  # fmt: skip
def test_span(limits: tuple[str, ...], want: tuple[Expr | int, Expr | int]) -> None:
    assert isl.span("s", ("s",), limits, ("q", "T")) == want


def test_is_shift() -> None:
    assert [is_shift(e, "t") for e in (t, t + 3, t - 1)] == [0, 3, -1]
    assert [is_shift(e, "t") for e in (2 * t, t + k, k, 5, t // 2, t - t)] == [None] * 6
