"""`rc.cond`: only the side that one truth value chooses is computed, or asked of the host."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch

import recurra as rc
from everywhere import BACKENDS, everywhere, interpreted
from recurra.errors import RecurraError, ShapeError
from recurra.frontend.context import Context
from recurra.ir.statement import Statement
from reference_executor import run_statements


def statements(program: Any) -> list[Statement]:
    return [*program.compilation.compiled.plan.statements.statements.values()]


def noted(calls: list[int]) -> Any:
    def look(k: Any, x: Any) -> Any:
        calls.append(int(k))
        return np.float32(x * 10)

    return look


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("side", [True, False])
def test_calls_are_made_where_they_are_chosen(backend: str, pure: bool, side: bool) -> None:
    calls: list[int] = []
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x")
        y = rc.call(noted(calls), rc.f32, rc.value(t), x, pure=pure) + 1.0
        rc.output(y=rc.cond(x > 0.5, y, x) if side else rc.cond(x > 0.5, x, y))
    given = np.array([0.0, 1.0, 0.25, 0.75, 2.0], "f4")
    chosen = (given > 0.5) == side
    want = np.where(chosen, given * 10 + 1, given)
    np.testing.assert_allclose(
        ctx.compile({T: 5}, backend=backend).run(inputs={"x": given})["y"], want
    )
    assert sorted(calls) == [*np.flatnonzero(chosen)]
    calls.clear()
    np.testing.assert_allclose(interpreted(ctx, {T: 5}, {"x": given})["y"], want)
    assert sorted(calls) == [*np.flatnonzero(chosen)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_under_two_conditions_keep_their_order(backend: str) -> None:
    calls: list[int] = []
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        x = rc.input(rc.f32, (i, t), name="x")
        whole = rc.input(rc.f32, (i,), name="whole")
        y = rc.call(noted(calls), rc.f32, rc.value(i * 10 + t), x)
        rc.output(y=rc.cond(whole > 0.0, rc.cond(x > 0.0, y, -1.0), -2.0))
    rows = np.array([1.0, -1.0, 1.0], "f4")
    given = np.array([[1, -1, 2, 3], [1, 1, 1, 1], [-1, -1, -1, 4]], "f4")
    want = np.where(rows[:, None] > 0, np.where(given > 0, given * 10, -1.0), -2.0)
    program = ctx.compile({I: 3, T: 4}, backend=backend)
    np.testing.assert_allclose(program.run(inputs={"x": given, "whole": rows})["y"], want)
    assert calls == [0, 2, 3, 23]


def first(y: Any, f: Any, d: Any, t: Any) -> None:
    y[0] = f
    y[t] = rc.cond(d, f, y[t - 1])


def first_and_often(y: Any, f: Any, d: Any, t: Any) -> None:
    y[0] = 1.0
    y[t % 4 == 2] = f * 2.0
    y[t] = rc.cond(d, f, y[t - 1])


def by_either(y: Any, f: Any, d: Any, t: Any) -> None:
    often = rc.cond(rc.value(t) > 6.0, f + 1.0, 0.0)
    y[0] = 1.0
    y[t] = rc.cond(d, f * 3.0, y[t - 1]) + often


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize(
    ("write", "made"), [(first, [0, 4, 8]), (first_and_often, [2, 4, 6, 8]), (by_either, [4, 7, 8])]
)
def test_a_call_is_made_where_any_of_its_readers_takes_it(
    write: Any, made: list[int], pure: bool, backend: str
) -> None:
    """One that a branch took, too, was made everywhere."""
    calls: list[int] = []
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        d = rc.input(rc.boolean, (t,), name="d")
        f = rc.call(noted(calls), rc.f32, rc.value(t), rc.value(t) + 1.0, pure=pure)
        y = rc.like(rc.f32, (t,))
        write(y, f, d, t)
        rc.output(y=y)
    given = {"d": np.arange(9) % 4 == 0}
    found = ctx.run({T: 9}, inputs=given, backend=backend)["y"]
    assert calls == made
    np.testing.assert_allclose(found, interpreted(ctx, {T: 9}, given)["y"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_that_something_else_reads_is_made_everywhere(backend: str) -> None:
    calls: list[int] = []
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x")
        y = rc.call(noted(calls), rc.f32, rc.value(t), x)
        rc.output(y=rc.cond(x > 0.5, y, x), before=rc.where(t > 0, y[t - 1], 0.0))
    given = np.array([0.0, 1.0, 0.25], "f4")
    have = ctx.compile({T: 3}, backend=backend).run(inputs={"x": given})
    np.testing.assert_allclose(have["y"], [0.0, 10.0, 0.25])
    np.testing.assert_allclose(have["before"], [0.0, 0.0, 10.0])
    assert calls == [0, 1, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reset_is_asked_of_the_host_where_an_episode_is_over(backend: str) -> None:
    calls: list[int] = []
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        n = rc.like(rc.f32, domain=(t,))
        fresh = rc.call(noted(calls), rc.f32, rc.value(t), 0.1)
        n[0] = 0.0
        n[t + 1] = rc.cond(n >= 3.0, fresh, n + 1.0)
        rc.output(n=n)
    have = ctx.compile({T: 9}, backend=backend).run()["n"]
    np.testing.assert_allclose(have, [0, 1, 2, 3, 1, 2, 3, 1, 2], rtol=1e-6)
    assert calls == [3, 6]


class Counted(gymnasium.Env[Any, Any]):
    """It says how often it was stepped since its reset, and notes who asks for what."""

    observation_space = gymnasium.spaces.Box(0.0, 99.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    asked: ClassVar[list[str]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.asked.append("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.asked.append("step")
        return np.full(2, self.steps, np.float32), float(action), False, False, {}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("by_data", [False, True])
def test_an_environment_is_asked_where_its_score_is(by_data: bool, backend: str) -> None:
    """Every third iteration, of 3 steps of 2 rows; the actions depend on what is seen."""
    if "Counted-v0" not in gymnasium.registry:
        gymnasium.register("Counted-v0", Counted)
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("Counted-v0", vectorization_mode="sync")
        o = rc.like(rc.f32[2], (b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        o[b, i, t + 1], r, _ = env.step((o.sum() > 1.0).cast("i32"))
        score = rc.like(rc.f32, (i,))
        score[0] = -1.0
        now = r[0:B, i, 0:T].sum()
        third = rc.value(i) % 3.0 == 0.0
        score[i] = (
            rc.cond(third, now, score[i - 1])
            if by_data
            else rc.where(i % 3 == 0, now, score[i - 1])
        )
        rc.output(score=score)
    Counted.asked.clear()
    have = ctx.compile({B: 2, I: 7, T: 3}, backend=backend).run()["score"]
    np.testing.assert_array_equal(have, [-1, -1, -1, 4, 4, 4, 4])
    assert Counted.asked == ["reset", "reset", *["step"] * 6] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_call_is_given_is_computed_where_it_is_made(backend: str) -> None:
    calls: list[int] = []
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32[64, 256], (t,), name="x")
        p = rc.input(rc.boolean, (t,), name="p")
        w = rc.constant(np.eye(256, dtype="f4"))
        y = rc.call(noted(calls), rc.f32, rc.value(t), (x @ w).sum())
        rc.output(y=rc.cond(p, y, -1.0))
    program = ctx.compile({T: 3}, backend=backend)
    (product,) = [s for s in statements(program) if s.op.name == "einsum"]
    assert [str(c) for c in product.decided_by] == ["p[t]"]
    given = {"x": np.ones((3, 64, 256), "f4"), "p": np.array([True, False, True])}
    np.testing.assert_allclose(program.run(inputs=given)["y"], [163840, -1, 163840])
    assert calls == [0, 2]


def chosen_network(rows: int, width: int) -> tuple[Context, Any]:
    ctx = rc.Context(dims="t")
    weights = np.random.default_rng(0).standard_normal((width, width)) / width**0.5
    with ctx as ((t, T),):
        x = rc.input(rc.f32[rows, width], (t,), name="x")
        p = rc.input(rc.boolean, (t,), name="p")
        w = rc.nn.Parameter(rc.constant(weights.astype("f4")), domain=(), name="w")
        h = rc.like(rc.f32[rows, width], domain=(t,))
        h[0] = 0.0
        h[t + 1] = rc.cond(p, ((h + x) @ w).tanh() @ w, h * 0.9)
        h[0:T].square().sum().backward()
        rc.output(h=h, slope=w.grad)
    return ctx, T


@pytest.mark.parametrize("backend", BACKENDS)
def test_work_is_left_out_also_of_the_gradient(backend: str) -> None:
    ctx, T = chosen_network(8, 256)
    program = ctx.compile({T: 3}, backend=backend)
    products = [s for s in statements(program) if s.op.name == "einsum"]
    assert len(products) >= 6
    assert all([str(c.ref) for c in s.decided_by] == ["p[t]"] for s in products), products


def test_what_is_left_out_reaches_no_result() -> None:
    """Statements run point by point: what they leave out is NaN there."""
    ctx, T = chosen_network(2, 256)
    program = ctx.compile({T: 4}, backend="numpy")
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((4, 2, 256)).astype("f4"), "p": np.array([1, 0, 0, 1], bool)}
    schedule = program.compilation.compiled.schedule
    assert any(s.polls for s in schedule.statements.statements.values())
    found = run_statements(schedule, {"T": 4}, given)
    want = program.run(inputs=given)
    for name, equation in zip(want, schedule.graph.outputs, strict=True):
        np.testing.assert_allclose(found[equation], want[name], rtol=1e-4, atol=1e-6)


def often_or_first(k: int, write: str) -> tuple[rc.Context, Any]:
    """Products that a branch takes at the first point, and data at every k-th."""
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        w = rc.input(rc.f32[256, 256], (), name="w")
        e = (((rc.value(t) * 0.01 + w) @ w).tanh() @ w).sum()
        d = rc.value(t, "i32") % k == 0
        y = rc.like(rc.f32, (t,))
        y[0] = e
        if write == "two":
            y[t] = rc.cond(d, e, y[t - 1]) + rc.cond(rc.value(t) > 6.0, e, 0.0)
        elif write == "one asks for the other":
            y[t] = rc.cond(rc.cond(d, e, 1.0) > 0.5, e, y[t - 1])
        else:
            y[t] = rc.cond(d, e, y[t - 1])
        rc.output(y=y)
    return ctx, T


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", ["one", "two", "one asks for the other"])
def test_what_several_choices_take_is_made_where_one_does(write: str, backend: str) -> None:
    """Since a branch took it, too, it was made everywhere."""
    ctx, T = often_or_first(4, write)
    given = {"w": np.random.default_rng(1).standard_normal((256, 256), "f4") * 0.05}
    program = ctx.compile({T: 9}, backend=backend)
    products = [s for s in statements(program) if s.op.name == "einsum"]
    waits = (
        write == "one asks for the other"
    )  # its own data are made of it: nothing can be left out
    assert products
    assert all(bool(s.decided_by) != waits for s in products), products
    want = interpreted(ctx, {T: 9}, given)["y"]
    np.testing.assert_allclose(program.run(inputs=given)["y"], want, rtol=2e-4)


def test_what_costs_little_is_computed() -> None:
    ctx, T = chosen_network(1, 4)
    assert not any(s.decided_by for s in statements(ctx.compile({T: 3}, backend="numpy")))


def test_gradients_beside_torch() -> None:
    """Also where the side that is not taken has no slope: 1 / 0 and √0."""
    ctx, given = rc.Context(dims="t"), np.array([0.0, 4.0, 0.0, 9.0], "f4")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x")
        y = rc.cond(x > 0.0, x.sqrt() + 1.0 / x, x * 3.0)
        y[0:T].sum().backward(wrt=[x])
        rc.output(slope=x.grad)
    z = torch.tensor(given, requires_grad=True)
    sum((v.sqrt() + 1 / v if v > 0 else v * 3.0) for v in z).backward()
    assert z.grad is not None
    for where, found in everywhere(ctx, {T: 4}, {"x": given}).items():
        np.testing.assert_allclose(found["slope"], z.grad.numpy(), rtol=1e-5, err_msg=where)


def test_a_condition_on_dims_is_a_branch() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x")
        rc.output(y=rc.cond(t > 0, x[t - 1], 0.0))
    for where, found in everywhere(ctx, {T: 3}, {"x": np.arange(3.0, dtype="f4")}).items():
        np.testing.assert_array_equal(found["y"], [0.0, 0.0, 1.0], err_msg=where)


def test_what_is_no_condition_is_told() -> None:
    with rc.Context(dims="t") as ((t, _T),):
        x = rc.input(rc.f32[3], (t,), name="x")
        with pytest.raises(ShapeError, match="not one truth value") as several:
            rc.cond(x > 0.0, x, 0.0)
        with pytest.raises(ShapeError, match="not one truth value"):
            rc.cond(x.sum(), x, 0.0)
        with pytest.raises(RecurraError, match="takes values, not functions"):
            rc.cond(x.sum() > 0.0, lambda: x, lambda: x * 2.0)
        assert rc.cond((x > 0).any(), x, x * 2.0).shape == (3,)
    assert "rc.where(x > 0, a, b)" in str(several.value)
