"""Demand: what nobody asks for need not be defined, ordered or computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import recurra as rc
from everywhere import expect_interpreted
from random_cases import QUICK
from random_programs import Case, programs
from recurra.analysis.demanded_points import branch_conditions, demanded
from recurra.analysis.exact_demand import demanded_exactly
from recurra.ir.expr import TRUE, evaluate
from recurra.ir.graph_parser import parse
from recurra.reference import interpreter
from recurra.reference.interpreter import Oracle

PROGRAM = """
dims t<T
y[t<T]: f32[] = merge(e, y[t-1], when=(t%50 == 0, (t >= 1) & (t%50 != 0)))
e[t<T]: f32[] = tanh(w)
w[t<T]: f32[] = value(expr=t, dtype='f32')
z: f32[] = tanh(q[T-1])
q[t<T]: f32[] = tanh(e[t-1])
s: f32[] = sum(p[5:T], axes=(0))
p[t<T]: f32[] = neg(w)
return y, z, s
"""


def test_points_are_asked_for_by_branches_and_by_indices() -> None:
    found = demanded(parse(PROGRAM), {"T": 200})
    assert {n: str(c) for n, c in found.items()} == {
        "e": "(t%50 == 0) | (t == T-2)",
        "q": "t == T-1",
        "w": "(t >= 5) | (t%50 == 0) | (t == T-2)",
        "p": "t >= 5",
    }


def test_a_range_that_moves_with_a_dim_of_its_source() -> None:
    text = """dims t<T, s<T
x[t<T]: f32[] = value(expr=t, dtype='f32')
p[t<T,s<T]: f32[] = mul(x, x[s])
q[t<T]: f32[] = sum(p[t,t+1:T], axes=(0,))
return q"""
    found = demanded(parse(text), {"T": 9})
    assert {n: str(c) for n, c in found.items()} == {"p": "s >= t+1"}


def test_a_condition_or_its_opposite_is_none() -> None:
    text = """dims t<T
p[t<T]: f32[] = value(expr=t, dtype='f32')
q[t<T]: f32[] = neg(p)
y[t<T]: f32[] = merge(p, q, when=(t == 0, t != 0))
z[t<T]: f32[] = merge(q, p, when=(t == 0, t != 0))
return y, z"""
    assert not demanded(parse(text), {"T": 9})


def test_effects_happen_where_a_branch_takes_them() -> None:
    graph = parse(PROGRAM.replace("e[t-1]", "p[t-1]"))
    assert {n: str(c) for n, c in branch_conditions(graph).items()} == {"e": "t%50 == 0"}


@pytest.mark.slow
@QUICK
@given(programs())
def test_what_the_interpreter_computes_has_been_asked_for(case: Case) -> None:
    graph = case.graph
    oracle = Oracle(graph, case.sizes, {}, 0)
    for name in graph.outputs:
        interpreter.collect(graph, name, oracle.env, lambda p, name=name: oracle.value(name, p))
    for asked in (demanded, demanded_exactly):
        found = asked(graph, case.sizes)
        for name, point in oracle.memo:
            env = {**case.sizes, **dict(zip(graph[name].domain.dims, point, strict=True))}
            assert evaluate(found.get(name, TRUE), env), (name, point, asked)


def nested(t: Any, T: Any) -> Any:
    """Both sides read t-1, and only what is around them says t >= 1."""
    z = rc.like(rc.f32, (t,), name="z")
    z[0] = 1.0
    z[t >= 1, t] = rc.where(t < 9, z[t - 1] + rc.value(t), z[t - 1] * 2.0)
    return z


def two_depths(t: Any, T: Any) -> Any:
    z = rc.like(rc.f32, (t,), name="z")
    z[0] = 1.0
    z[t >= 7, t] = rc.where(t < 9, z[t - 1] + rc.value(t), z[t - 2] * 2.0)
    z[t] = z[t - 1]
    return z


def copied(every: int) -> Any:
    def target(t: Any, T: Any) -> Any:
        """A copy every few steps: the last may fall on T, where nobody reads it."""
        w = rc.nn.Parameter(rc.constant(1.0), domain=(t,), name="w")
        g = rc.nn.Parameter(rc.constant(1.0), domain=(t,), name="g")
        (w - 3.0).square().backward(wrt=[w])
        rc.optim.SGD([w], lr=0.1).step()
        g.update(rc.where((t + 1) % every == 0, w[t + 1], g))
        return g

    return target


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("program", [nested, two_depths, copied(7), copied(8)])
def test_points_that_nobody_reads_need_not_be_defined(program: Any, backend: str) -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        rc.output(z=program(t, T))
    expect_interpreted(ctx, {T: 40}, backend, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_gradient_of_two_steps_at_one(length: int) -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x, c = rc.input(rc.f32, (t,), name="x"), rc.input(rc.f32, (), name="c")
        y = rc.like(rc.f32, (t,), name="y")
        y[0] = x
        y[t == 1] = 0.5 * y[t - 1] + x
        y[t] = (0.5 * y[t - 1] + c * y[t - 2]).tanh() + x
        y[0:T].sum().backward(wrt=[c])
        rc.output(g=c.grad)
    given = {"x": np.ones(length, np.float32), "c": np.float32(0.3)}
    have = ctx.compile({T: length}, backend="numpy").run(inputs=given)["g"]
    slope = 1 - np.tanh(0.5 * 1.5 + 0.3) ** 2 if length == 3 else 0.0  # of y[2] by c, times y[0]
    np.testing.assert_allclose(have, slope, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("begin", [0, 1, 5])
def test_a_sum_of_the_later_steps_keeps_none_of_them(begin: int, backend: str) -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        h = rc.like(rc.f32[3], (b, t), name="h")
        h[b, 0] = rc.normal((b,), (3,))
        h[b, t + 1] = (h * 1.1).tanh()
        squares = rc.einsum("i,j->ij", h, h)
        rc.output(s=squares[b, begin:T].sum(axis=0), most=squares[b, begin:T].max(axis=0))
    for length in (5 if begin < 5 else 6, 9):
        program = ctx.compile({B: 2, T: length}, backend=backend)
        assert not any(a.slots > 2 for s in program.compiled.plan.stores.values() for a in s.kept)
        want = interpreter.run(ctx.graph, {"B": 2, "T": length})
        for name, x in program.run().items():
            np.testing.assert_allclose(x, want[name], rtol=1e-5, err_msg=name)
