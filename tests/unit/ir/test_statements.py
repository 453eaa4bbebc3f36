"""Statements: branches as boxes of one array, run point by point in the order of a schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given

import recurra as rc
from everywhere import expect_interpreted
from fuzzing import drawn_at_length
from program_checks import oracle
from random_cases import QUICK
from random_programs import Case, programs, ragged
from recurra.cost.thresholds import MAX_CUT_ROUNDS
from recurra.errors import ScheduleError
from recurra.ir.expr import Sym, all_of, any_of, compare, mod
from recurra.ir.graph import Graph
from recurra.ir.graph_parser import parse
from recurra.ir.statement import StatementGraph
from recurra.ir.types import Domain, Range
from recurra.ops.control import Merge
from recurra.polyhedral.boxes import Box, split_boxes
from recurra.schedule import allen_kennedy
from recurra.schedule.allen_kennedy import find_schedule
from recurra.schedule.lower_values import lower_values
from recurra.transforms.canonicalize.canonicalize import canonicalize
from reference_executor import run_statements
from statement_verifier import verify_statements

JACOBI = """
dims t<T, i<I, j<J
u[t<T,i<I,j<J]: f32[] = merge(u0[i,j], c, c, m, when=(t == 0, (i == 0) & (t != 0),
  (i == I-1) & (t != 0) & (i != 0), (t >= 1) & (i >= 1) & (i < I-1)))
u0[i<I,j<J]: f32[] = uniform(id=1, counter=(i, j))
c: f32[] = const(value=0.0)
m[1<=t<T,1<=i<I-1,j<J]: f32[] = mul(u[t-1,i-1,j], u[t-1,i+1,j])
return u
""".replace(",\n  ", ", ")


def text(graph: StatementGraph) -> list[str]:
    """The statements of an array u."""
    return [str(s) for s in graph.statements.values() if s.array == "u"]


def test_branches_are_boxes() -> None:
    graph = parse(JACOBI)
    assert text(lower_values(graph, {"T": 5, "I": 4, "J": 6})) == [
        "u[0, i<I, j<J] = u0[i,j]",
        "u[t<1..T, 0, j<J] = c",
        "u[t<1..T, I-1, j<J] = c",
        "u[t<1..T, i<1..I-1, j<J] = m[t,i,j]",
    ]
    assert text(lower_values(graph, {"T": 1, "I": 1, "J": 6})) == ["u[t<T, i<I, j<J] = u0[i,j]"]
    assert len(text(lower_values(graph, {"T": 5, "I": 4, "J": 6}, cuts={}))) == 1


@pytest.mark.parametrize(
    ("when", "want"),
    [
        ("(t % 3 == 0, t % 3 != 0)", ["u[t<T] = a[t]  if t%3 == 0", "u[t<T] = b[t]  if t%3 != 0"]),
        ("(t == 2, t != 2)", ["u[2] = a[2]", "u[t<2] = b[t]", "u[t<3..T] = b[t]"]),
        ("((t == 0) | (t >= 7), (t > 0) & (t < 7))",
         ["u[0] = a[0]", "u[t<7..T] = a[t]", "u[t<1..7] = b[t]"]),
        ("(~(t < T-1), t < T-1)", ["u[T-1] = a[T-1]", "u[t<T-1] = b[t]"]),
    ],
)  # fmt: skip
def test_a_condition_is_as_few_boxes_as_say_it(when: str, want: list[str]) -> None:
    graph = parse(
        "dims t<T\n"
        "a[t<T]: f32[] = uniform(id=1, counter=(t, 0))\n"
        "b[t<T]: f32[] = uniform(id=2, counter=(t, 0))\n"
        f"u[t<T]: f32[] = merge(a, b, when={when})\n"
        "return u"
    )
    lowered = lower_values(graph, {"T": 9})
    assert text(lowered) == want
    assert verify_statements(lowered, {"T": 9}) == ()


def test_a_condition_of_very_many_boxes_is_left_as_it_is() -> None:
    """The boxes of 60 alternatives are more than anybody could write down."""
    t, i = Sym("t"), Sym("i")
    cases = (all_of(compare("==", mod(t, k), 0), compare("!=", i, k)) for k in range(2, 62))
    domain = Domain((Range("t", Sym("T")), Range("i", Sym("I"))))
    condition = any_of(*cases)
    assert split_boxes(domain, condition, {"T": 200, "I": 100}) == (Box(domain, condition),)


def test_many_cuts_are_as_many_boxes() -> None:
    """Points before, at and behind each of 19 cuts: 39 boxes, not 3 to the 19."""
    graph = parse(
        "dims t<T\n"
        "a[t<T]: f32[] = uniform(id=1, counter=(t, 0))\n"
        "u[t<T]: f32[] = merge(a, when=(true,))\n"
        "return u"
    )
    found = lower_values(graph, {"T": 60}, {"u": frozenset(("t", 3 * k) for k in range(1, 20))})
    assert len(text(found)) == 2 * 19 + 1
    assert verify_statements(found, {"T": 60}) == ()


def test_what_has_no_order_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient that flows into iterations before, of weights that are made of it."""
    tried: list[int] = []

    def ordered(*args: Any) -> Any:
        tried.append(1)
        return once(*args)

    once = allen_kennedy._for_any_bounds
    monkeypatch.setattr(allen_kennedy, "_for_any_bounds", ordered)
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        x = rc.input(rc.f32, (t,), name="x")
        w, y, z = rc.like(rc.f32, (i,)), rc.like(rc.f32, (i, t)), rc.like(rc.f32, (i, t))
        w[0] = 1.0
        y[0, 0] = x
        y[i, 0] = y[i - 1, T - 1] * 0.5
        y[i, t] = (y[i, t - 1] * 0.5 + x * w).tanh()
        z[i, 0] = y
        z[i, t] = y[i, T - 1 - t] * z[i, t - 1]
        v = y[i, T - 1] * z[i, t // 2] + rc.where(t >= 2, z[i, 2], z[i, rc.max(t - 1, 0)])
        v[i, 0:T].mean().backward(wrt=[w])
        w[i + 1] = w - 0.1 * w.grad
        rc.output(w=w)
    with pytest.raises(ScheduleError, match="have no order"):
        ctx.compile({I: 3, T: 5}, backend="numpy")
    assert len(tried) <= MAX_CUT_ROUNDS + 1


def test_a_branch_that_no_point_takes_goes_with_its_line() -> None:
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        y = rc.like(rc.f32, (i, t), name="y")
        y[0, 0] = 1.0
        y[i, 0] = y[i - 1, T - 1] * 0.5
        y[i, t] = y[i, t - 1] + 1.0
        rc.output(y=y)
    graph = ctx.graph
    assert len(graph["y"].locs) == 3
    left = canonicalize(graph, {"I": 3, "T": 1})
    (node,) = [n for n in left.nodes.values() if n.name == "y"]
    assert node.locs == graph["y"].locs[:2]


def test_a_choice_that_is_no_branch_has_no_lines_of_branches() -> None:
    """With t as an axis the branches of y are a select, whose operands are not three branches."""
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        x = rc.uniform(domain=(i, t))
        y = rc.like(rc.f32, (i, t), name="y")
        y[i, t % 3 == 0] = x
        y[i, t % 3 == 1] = x * 2.0
        y[i, t] = x * 3.0
        rc.output(y=y)
    made = ctx.compile({I: 2, T: 7}, backend="numpy").compiled
    node = made.plan.graph[made.outputs["y"]]
    assert not isinstance(node.op, Merge)
    assert set(node.lines) == {node.loc}


def test_what_is_wrong_is_found() -> None:
    graph = parse(
        "dims t<T\n"
        "a[t<T]: f32[] = uniform(id=1, counter=(t, 0))\n"
        "u[t<T]: f32[] = merge(a, a[t-1], when=(t < 3, t > 1))\n"
        "return u"
    )
    assert verify_statements(lower_values(graph, {"T": 5}), {"T": 5}) == (
        "u.0 and u.1 both write u at {'T': 5, 't': 2}",
    )
    graph = parse(str(graph).replace("t > 1", "t > 3"))
    assert verify_statements(lower_values(graph, {"T": 5}), {"T": 5}) == (
        "no statement writes u at {'T': 5, 't': 3}",
    )


def branches(graph: Graph) -> dict[str, frozenset[Any]]:
    """Cuts of all that has branches."""
    return {n.name: frozenset() for n in graph.nodes.values() if isinstance(n.op, Merge)}


def agree(case: Case, cuts: Any) -> None:
    """Statements in the order of their schedule have the interpreter's answer."""
    assume(not ragged(case.graph, case.sizes))  # the lengths of rows are static where it orders
    found = find_schedule(case.graph, case.sizes, cuts=cuts)
    assert verify_statements(found.statements, case.sizes) == ()
    with np.errstate(all="ignore"):
        want, have = oracle(case), run_statements(found, case.sizes, {})
    for name, x in zip(case.graph.outputs, want, strict=True):
        if "+" in str(found):  # sums are added up in another order
            np.testing.assert_allclose(have[name], x, rtol=1e-4, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(have[name], x, err_msg=name)


@pytest.mark.slow
@QUICK
@given(programs())
def test_random_programs_as_statements(case: Case) -> None:
    agree(case, cuts={})
    agree(case, cuts=branches(case.graph))


@drawn_at_length()
@given(programs())
def test_random_programs_as_statements_long(case: Case) -> None:
    agree(case, cuts=branches(case.graph))


def clamped(t: Any, T: Any) -> Any:
    h = rc.like(rc.f32, (t,), name="h")
    h[0] = 1.0
    h[t] = h[rc.max(t - 1, 0)] * 0.5
    return h


def waited_for(t: Any, T: Any) -> Any:
    x = rc.like(rc.f32, (t,), name="x")
    y = x[0].tanh()
    x[0] = 1.0
    x[t] = (x + y)[t - 1]
    return x


def late_total(terms: Any) -> Any:
    """What the sum of some terms over t is added to reads the next step of i."""

    def made(i: Any, I: Any, t: Any, T: Any) -> Any:
        c = rc.like(rc.f32, (i,), name="c")
        c[0] = 1.0
        c[i] = (c[i - 1] * 0.9).sin()
        return terms(c, i, t)[i, 0:T].sum() + c[i : rc.min(i + 2, I)].sum()

    return made


def curve(c: Any, i: Any, t: Any) -> Any:
    g = rc.like(rc.f32, (i, t), name="g")
    g[i, 0] = c
    g[i, t] = (g[i, t - 1] * 1.5 + c).sin()
    return g


def at_one_step(c: Any, i: Any, t: Any) -> Any:
    return rc.where(i == 0, c * rc.value(t), 0.0)


def of_another_loop(c: Any, i: Any, t: Any) -> Any:
    w = rc.like(rc.f32, (t,), name="w")
    w[0] = 1.0
    w[t] = (w[t - 1] * 0.7).sin()
    return rc.where(i == 0, w, 0.0)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("terms", [curve, at_one_step, of_another_loop])
def test_a_total_is_taken_in_the_step_that_adds_it_up(terms: Any, backend: str) -> None:
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        rc.output(out=late_total(terms)(i, I, t, T))
    expect_interpreted(ctx, {I: 4, T: 3}, backend)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("program", [clamped, waited_for])
def test_what_one_branch_reads_holds_up_no_other(program: Any, backend: str) -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        rc.output(x=program(t, T))
    expect_interpreted(ctx, {T: 7}, backend)
