"""duplicates: what a recurrence keeps and what its branches copy are kept once."""

from __future__ import annotations

from typing import Any

import pytest

import recurra as rc
from everywhere import BACKENDS, expect_interpreted
from program_checks import compiled, oracle
from random_programs import Case
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.compiler.options import CompileOptions
from recurra.compiler.pipeline import compile_graph
from recurra.ir.graph_parser import parse
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.verifier import validate

T = 7


def network(behind: bool = False, output: bool = False) -> tuple[rc.Context, Any]:
    """The gradient through h, which is `new` of the same step, or of the one before."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, end),):
        x = rc.uniform((t,), shape=(3,))
        w = rc.constant([0.5, -0.25, 0.75], "f32")
        h = rc.like(rc.f32[3], domain=(t,), name="h")
        new = (x * w + (h if behind else h[t - 1])).tanh()
        h[0] = x[0]
        h[t] = new[t - 1] if behind else new
        loss = h[0:end].square().sum()
        loss.backward(wrt=[w])
        rc.output(slope=w.grad)
        if output:
            rc.output(new=new[1:end])
    return ctx, end


def stores(ctx: rc.Context, end: Any) -> set[str]:
    p = ctx.compile({end: T}, backend="numpy").compiled.plan
    assert not validate(p)
    return {name for name, s in p.stores.items() if s.kept and not s.output}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("behind", [False, True])
def test_gradients_of_a_network_are_those_of_the_interpreter(behind: bool, backend: str) -> None:
    ctx, end = network(behind)
    expect_interpreted(ctx, {end: T}, backend, rtol=1e-5)


def test_what_the_branch_copies_has_no_store_of_its_own() -> None:
    assert stores(*network()) == {"x", "h"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_output_stays_where_it_is(backend: str) -> None:
    ctx, end = network(output=True)
    expect_interpreted(ctx, {end: T}, backend, rtol=1e-5)


GRAPH = """
    dims t<T, s<S
    x[t<T]: f64[] = value(expr=t+2, dtype='f64')
    first: f64[] = const(value=3.0, dtype='f64')
    h[t<T]: f64[] = merge(first, next[t-1], when=(t == 0, t >= 1))
    next[t<T]: f64[] = mul(x, h)
    read[s<S]: f64[] = mul(next[{point}], h[T-1-s])
    total: f64[] = sum(read[0:S], axes=(0,))
    return total
"""


def planned(point: str, **sizes: int) -> tuple[StoragePlan, Case]:
    lines = [line.strip() for line in GRAPH.format(point=point).strip().splitlines()]
    c = Case(parse("\n".join(lines)), sizes)
    compiled(c, NumpyBackend(), oracle(c), vectorized=False)
    return compile_graph(
        c.graph, c.sizes, CompileOptions.from_keywords({"vectorized": False})
    ).plan, c


def test_a_copy_one_step_later_is_read_one_step_later() -> None:
    p, _ = planned("s", T=6, S=5)
    assert "next" not in p.stores
    assert any("h[1:S+1]" in map(str, s.args) for s in p.statements.statements.values())


@pytest.mark.parametrize("point", ["s", "s+1"])
def test_a_point_that_is_not_copied_is_read_where_it_is(point: str) -> None:
    """The last point of `next` goes nowhere."""
    p, _ = planned(point, T=6, S=5 if point == "s+1" else 6)
    assert "next" in p.stores
