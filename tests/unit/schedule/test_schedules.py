"""n-step returns learn while acting, Monte Carlo after it: another access, another schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import recurra as rc
from program_checks import compiled as checked
from program_checks import oracle
from random_programs import Case
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.compiler.pipeline import Compiled
from recurra.errors import ScheduleError
from recurra.ir.graph_parser import parse
from recurra.ir.verify import verify
from recurra.reference import interpreter
from recurra.schedule.allen_kennedy import find_schedule
from recurra.schedule.tree import Exec, Item, Loop
from recurra.storage.verifier import validate
from reinforce import GRADIENTS, SEED, context, reinforce

STEPS = [1, 3, 5, 64, 256]
ACT, RETURNS = "a", "g"


def compiled(B: int, T: int, n: int | None) -> Compiled:
    return reinforce(B, T, 4, n).compiled


def loops(items: tuple[Item, ...]) -> Iterator[Loop]:
    """Every loop, the outer before the inner."""
    for it in items:
        if isinstance(it, Loop):
            yield it
            yield from loops(it.body)


def innermost(c: Compiled, statement: str) -> Loop:
    (loop,) = (x for x in loops(c.schedule.items) if Exec(statement) in x.body)
    return loop


def learner(c: Compiled) -> str:
    """What is added to the gradient of the last layer's bias."""
    folds = [n for n in c.schedule.graph.nodes.values() if n.op.name == "fold"]
    (gradient,) = (n for n in folds if n.type.shape == (2,))
    return gradient.args[0].name


def slots(c: Compiled) -> dict[str, int]:
    """Of each store along t."""
    kept = {s.name: {a.dim: a for a in s.kept} for s in c.plan.stores.values()}
    return {name: axes["t"].slots for name, axes in kept.items() if "t" in axes}


@pytest.mark.parametrize("n", STEPS)
def test_learning_follows_acting_at_a_delay_of_n_less_one(n: int):
    c = compiled(64, 300, n)
    acts, learns = innermost(c, ACT), innermost(c, learner(c))
    assert acts is learns
    assert (acts.dim, acts.step) == ("t", 1)
    assert acts.shift[learner(c)] - acts.shift[ACT] == n - 1
    assert [x.dim for x in loops(c.schedule.items)] == ["i", "t"]


@pytest.mark.slow
@pytest.mark.parametrize("n", STEPS)
def test_n_steps_need_n_slots_however_long_the_run(n: int):
    c = compiled(64, 300, n)
    assert set(slots(c).values()) == ({n} if n > 1 else set())
    longer = compiled(64, 600, n)
    assert slots(longer) == slots(c)
    assert [s.nbytes(c.plan.sizes) for s in longer.plan.stores.values()] == [
        s.nbytes(c.plan.sizes) for s in c.plan.stores.values()
    ]


def test_monte_carlo_acts_then_goes_back_then_learns():
    c = compiled(64, 300, None)
    acts, returns, learns = (innermost(c, x) for x in (ACT, RETURNS, learner(c)))
    assert len({id(x) for x in (acts, returns, learns)}) == 3
    assert [acts.step, returns.step] == [1, -1]
    assert set(slots(c).values()) == {300}
    assert len(slots(c)) >= 4


@pytest.mark.parametrize("n", [None, 1, 3, 5])
def test_the_plan_is_right_point_by_point(n: int | None):
    assert validate(compiled(2, 9, n).plan) == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "numpy"])
@pytest.mark.parametrize("n", [1, 3, 5])
def test_n_steps_by_the_oracle(n: int, backend: str):
    """Three iterations, point by point."""
    B, T, I = 2, 9, 3
    ctx, bounds = context(n, shown=tuple(GRADIENTS))
    sizes = {str(d): x for d, x in zip(bounds, (B, I, T), strict=True)}
    graph = ctx.graph
    values = interpreter.run(graph, sizes, seed=SEED)
    got = reinforce(B, T, I, n, shown=tuple(GRADIENTS), backend=backend).run(seed=SEED)
    names = dict(ctx.builder.logs)
    assert names.keys() == got.keys()
    for name, x in got.items():
        np.testing.assert_allclose(x, values[names[name]], rtol=1e-4, atol=1e-6, err_msg=name)


def test_an_order_that_there_is_for_these_bounds_only() -> None:
    """sum8 reads all of merge2 after its first point: of two points that is its own."""
    text = """
    dims i<I, t<T
    none: f64[2] = const(value=0.25, dtype='f64', shape=(2,))
    x[i<I,t<T]: f64[2] = merge(none, y[0,t+1], when=(t == T-1, t != T-1))
    s[i<I-1,1<=t<T]: f64[] = sum(x[I-1,1:T], axes=(0, 1))
    z[i<I,t<T]: f64[2] = add(s[1,T-1], x, labels=',a->a')
    y[i<I,t<T]: f64[2] = tanh(z)
    return y
    """
    case = Case(verify(parse(text)), {"I": 4, "T": 2})
    checked(case, NumpyBackend(), oracle(case), vectorized=False)
    with pytest.raises(ScheduleError, match="have no order"):
        find_schedule(case.graph, {"I": 4, "T": 3})


def a2c(n: int, boundary: Callable[[Any, Any, Any], Any]) -> rc.Executable:
    """n-step returns of a linear system, with the value of the state behind them."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        p, q = rc.nn.MLP([3, 4, 2], domain=(i,)), rc.nn.MLP([3, 4, 1], domain=(i,))
        o = rc.like(rc.f32[3], domain=(b, i, t))
        o[b, i, 0] = rc.normal((b, i), (3,))
        choice, v = rc.nn.Categorical(p(o)), q(o).index(0)
        a = choice.sample()
        after = (o * 0.9 + a.cast("f32")).tanh()
        o[b, i, t + 1] = after
        r = after.square().sum()
        ahead = rc.like(rc.f32, domain=(b, i, t), name="ahead")
        ahead[b, i, T - 1] = boundary(q, after, v)
        ahead[b, i, t] = v[b, i, t + 1]
        g = r[b, i, t : rc.min(t + n, T)].discounted_sum(0.9)
        g = (g + 0.9**n * ahead[b, i, rc.min(t + n - 1, T - 1)]).detach()
        loss = -choice.log_prob(a) * (g - v).detach() + 0.5 * (g - v).square()
        loss[0:B, i, 0:T].mean().backward()
        rc.optim.SGD([*p.params, *q.params], lr=0.1).step()
        rc.log(ret=r[0:B, i, 0:T].mean())
    return ctx.compile({B: 8, I: 3, T: 40}, backend="numpy")


@pytest.mark.slow
def test_a_branch_at_the_last_point_splits_no_loop() -> None:
    bootstrapped = a2c(3, lambda q, after, v: q(after).index(0))
    zero = a2c(3, lambda q, after, v: 0.0)
    for program in (bootstrapped, zero):
        assert [x.dim for x in loops(program.compiled.schedule.items)].count("t") == 1
    kept = [slots(x.compiled) for x in (bootstrapped, zero)]
    assert max(kept[0].values()) == max(kept[1].values()) == 4
    assert bootstrapped.memory.nbytes < 1.1 * zero.memory.nbytes
