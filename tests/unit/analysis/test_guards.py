"""Guards: work, and calls of the host, at those points only at which a branch asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import recurra as rc
from fuzzing import drawn_at_length
from program_checks import compiled, oracle
from random_cases import CASES, QUICK
from random_programs import Case, programs, ragged
from recurra.analysis import guards
from recurra.backends.jax.region import JaxBackend
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.backends.torch.region import TorchBackend
from recurra.ir.expr import TRUE, Sym, all_of, compare, mod
from recurra.ir.types import Domain, Range
from recurra.reference import interpreter

BACKENDS = ["numpy", "jax", "torch"]


def last_known(i: Any, every: int, value: Any) -> Any:
    """A value that is taken every few steps, and kept between them."""
    y = rc.like(rc.f32, (i,), name="y")
    y[i % every == 0, i] = value
    y[i] = y[i - 1]
    return y


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_is_made_where_a_branch_takes_its_result(backend: str, pure: bool) -> None:
    calls: list[int] = []

    def look(x: Any) -> Any:
        calls.append(int(x))
        return np.float32(x)

    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        y = last_known(i, 50, rc.call(look, rc.f32, rc.value(i), pure=pure))
        rc.output(y=y)
    have = ctx.compile({I: 200}, backend=backend).run()["y"]
    np.testing.assert_array_equal(have, np.arange(200) // 50 * 50)
    assert calls == [0, 50, 100, 150]
    calls.clear()
    interpreter.run(ctx.graph, {"I": 200})
    assert calls == [0, 50, 100, 150]


Take = Callable[[Any, Any, Any], tuple[Any, Any]]  # of a call and t: where it is taken, and what
TAKEN_FROM_ANOTHER_POINT: dict[str, tuple[Take, list[int]]] = {
    "at the next one, in turns": (lambda c, t: (((t + 1) % 4 == 0, t + 1), c), [3, 7]),
    "by the turn before": (lambda c, t: ((t % 4 == 3, t + 1), c), [3, 7]),
    "one point": (lambda c, t: ((t == 3, t + 1), c), [3]),
    "from one on": (lambda c, t: ((t >= 6, t + 1), c), [6, 7, 8]),
    "of the point before": (lambda c, t: ((t % 4 == 0, t), c[t - 1]), [3, 7]),
    "through an operator": (lambda c, t: ((t % 4 == 0, t), c[t - 1] * 1.0), [3, 7]),
}


@pytest.mark.parametrize("name", TAKEN_FROM_ANOTHER_POINT)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_whose_result_is_taken_some_steps_away(backend: str, name: str) -> None:
    calls: list[int] = []

    def look(x: Any) -> Any:
        calls.append(int(x))
        return np.float32(x + 100)

    take, made = TAKEN_FROM_ANOTHER_POINT[name]
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.like(rc.f32, (t,), name="x")
        x[0] = 0.0
        where, taken = take(rc.call(look, rc.f32, rc.value(t)), t)
        x[where] = taken
        x[t + 1] = x + 1.0
        rc.output(x=x)
    want = [0.0]
    for k in range(1, 9):
        want.append(k + 99.0 if k - 1 in made else want[-1] + 1.0)
    np.testing.assert_array_equal(ctx.run({T: 9}, backend=backend)["x"], want)
    assert calls == made
    calls.clear()
    np.testing.assert_array_equal(interpreter.run(ctx.graph, {"T": 9})["x"], want)
    assert calls == made


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_that_are_made_keep_their_order(backend: str) -> None:
    calls: list[tuple[int, int]] = []

    def look(i: Any, t: Any) -> Any:
        calls.append((int(i), int(t)))
        return np.float32(len(calls))

    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        found = rc.call(look, rc.f32, rc.value(i), rc.value(t))
        x = rc.like(rc.f32, (i, t), name="x")
        x[i, (i % 2 == 1) & (t % 3 == 2), t] = found
        x[i, t] = 0.0
        rc.output(s=x[0:I, 0:T].sum())
    have = ctx.compile({I: 4, T: 7}, backend=backend).run()["s"]
    assert calls == [(1, 2), (1, 5), (3, 2), (3, 5)]
    assert have == 1 + 2 + 3 + 4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_call_that_no_branch_takes_for_these_bounds_is_not_made(
    size: int, pure: bool, backend: str
) -> None:
    calls: list[str] = []

    def look(name: str) -> Any:
        return lambda x: (calls.append(f"{name}{int(x)}"), np.float32(x))[1]

    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        odd, fifth = (rc.call(look(n), rc.f32, rc.value(i), pure=pure) for n in ("odd", "fifth"))
        y = rc.like(rc.f32, (i,), name="y")
        y[i == 5] = fifth
        y[i] = -1.0
        rc.output(y=y, z=rc.where(i % 2 == 1, odd, -1.0))
    have = ctx.compile({I: size}, backend=backend).run()
    made = sorted(calls)
    calls.clear()
    want = interpreter.run(ctx.graph, {"I": size})
    assert made == sorted(calls)
    assert made == ["fifth5"] * (size > 5) + [f"odd{k}" for k in range(1, size, 2)]
    np.testing.assert_array_equal(have["y"], want["y"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_call_beside_a_recurrence_of_one_point_is_not_made(size: int, backend: str) -> None:
    """At one point the branch was dropped first, and what nobody reads is called everywhere."""
    calls: list[int] = []
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        f = rc.call(lambda v: (calls.append(int(v)), np.float32(v))[1], rc.f32, rc.value(t))
        x = rc.like(rc.f32, (t,))
        x[0] = 0.0
        x[t] = rc.where(t % 3 == 2, f, x[t - 1])
        rc.output(x=x)
    ctx.run({T: size}, backend=backend)
    assert calls == list(range(2, size, 3))


def test_a_call_whose_result_nobody_reads_is_made_everywhere() -> None:
    calls: list[int] = []
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        rc.call(lambda x: (calls.append(int(x)), np.float32(0))[1], rc.f32, rc.value(i))
        rc.output(y=last_known(i, 5, rc.value(i)))
    ctx.compile({I: 10}, backend="numpy").run()
    assert calls == list(range(10))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_seldom_asked_for_runs_seldom(backend: str) -> None:
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        w = rc.constant((np.eye(64) * 0.9).astype("f4"))
        s = rc.like(rc.f32[64, 64], (i,), name="s")
        s[0] = rc.constant(np.eye(64, dtype="f4"))
        s[i + 1] = s * 0.999
        rc.output(y=last_known(i, 10, (((s @ w).tanh() @ w).tanh() @ w).sum()))
    program = ctx.compile({I: 40}, backend=backend)
    rare = [s for s in program.compiled.schedule.statements.statements.values() if s.where != TRUE]
    assert {str(s.where) for s in rare} == {"i%10 == 0"}
    assert [s.op.name for s in rare].count("einsum") == 3
    (want,) = interpreter.run(ctx.graph, {"I": 40}).values()
    np.testing.assert_allclose(program.run()["y"], want, rtol=1e-4)


@pytest.fixture
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can run under a condition does."""
    monkeypatch.setattr(guards, "GUARD_NS", -1.0)
    monkeypatch.setattr(guards, "MAX_GUARDED_SHARE", 1.0)


def check(case: Case, *backends: Any) -> None:
    want = oracle(case)
    for backend in backends:
        for options in ({}, {"vectorized": False}):
            compiled(case, backend, want, launch_steps=2, **options)


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize("case", CASES)
def test_a_program_that_went_wrong_under_conditions(case: Case) -> None:
    check(case, NumpyBackend())


QUICKER = settings(QUICK, max_examples=8)


@pytest.mark.slow
@pytest.mark.usefixtures("_everywhere")
@QUICK
@given(programs())
def test_random_programs_under_conditions(case: Case) -> None:
    check(case, NumpyBackend())


@pytest.mark.slow
@pytest.mark.usefixtures("_everywhere")
@QUICKER
@given(programs(ragged=False))
def test_random_programs_under_conditions_compiled(case: Case) -> None:
    if not ragged(case.graph, case.sizes):
        check(case, JaxBackend(), TorchBackend())


@pytest.mark.usefixtures("_everywhere")
@drawn_at_length()
@given(programs())
def test_random_programs_under_conditions_long(case: Case) -> None:
    check(case, NumpyBackend())


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_seldom_asked_for_is_no_axis(backend: str) -> None:
    """Nothing here needs a loop, but all points at once would be ten times the work."""
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        w = rc.constant((np.eye(64) * 0.9).astype("f4"))
        x = rc.normal((i,), (64, 64))
        y = rc.like(rc.f32, (i,), name="y")
        y[(i + 1) % 10 == 0, i] = (((x @ w).tanh() @ w).tanh() @ w).sum()
        y[i] = 0.0
        rc.output(y=y)
    program = ctx.compile({I: 40}, backend=backend)
    rare = [s for s in program.compiled.schedule.statements.statements.values() if s.where != TRUE]
    assert [s.op.name for s in rare].count("einsum") == 3
    (want,) = interpreter.run(ctx.graph, {"I": 40}).values()
    np.testing.assert_allclose(program.run()["y"], want, rtol=1e-3)


@pytest.mark.parametrize("period", [3, 4000])
def test_the_share_of_a_long_period_is_asked_for_once(
    period: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = guards.evaluate
    monkeypatch.setattr(guards, "evaluate", lambda *args: (asked.append(args), real(*args))[1])
    t = Sym("t")
    condition = all_of(compare("==", mod(t, period), 1), compare(">=", mod(t + 1, period), 0))
    domain = Domain((Range("t", Sym("T")),))
    assert guards.share_of(domain, condition, {"T": 12000}) == 1 / period
    assert len(asked) < 10
