"""check accepts a program iff enumeration finds nothing wrong; its counter-examples are real."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_affine import DIMS, Env, affine, asked, condition, holds, index, points
from recurra.analysis.graph_builder import disjoint
from recurra.analysis.safety import check_safety
from recurra.errors import DomainError, RecurraError, ScheduleError, ShapeError
from recurra.ir.dims import Dim
from recurra.ir.expr import (
    TRUE,
    Expr,
    Sym,
    compare,
    evaluate,
    mod,
)
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.types import Domain, Range, Type
from recurra.ops.control import Merge
from recurra.ops.source import Const, Input
from recurra.polyhedral.interval import narrow, span

SCALAR = Type("f32")


@st.composite
def programs(draw: st.DrawFn) -> tuple[Graph, Env]:
    """x over some box; y merges reads of x under random conditions."""
    ranges = [Range(r.dim, r.hi + draw(st.integers(0, 1)), draw(st.integers(0, 1))) for r in DIMS]
    source = Domain(tuple(r for r in ranges if draw(st.integers(0, 3))))
    count = draw(st.integers(1, 3))
    when = [draw(condition()) for _ in range(count)]
    if draw(st.booleans()):
        when[-1] = TRUE
    refs = tuple(Ref("x", tuple(draw(index(r)) for r in source)) for _ in when)
    x = Node("x", Input(dtype="f32"), (), source, SCALAR)
    y = Node("y", Merge(when=disjoint(when)), refs, Domain(DIMS), SCALAR)
    env = {"S": draw(st.integers(1, 3)), "T": draw(st.integers(1, 5))}
    return Graph({"x": x, "y": y}, ("y",), tuple(map(Dim, DIMS))), env


def within(q: tuple[int, ...], domain: Domain, env: Env) -> bool:
    ends = zip(q, domain, strict=True)
    return all(evaluate(r.lo, env) <= v < evaluate(r.hi, env) for v, r in ends)


def wrongs(graph: Graph, env: Env) -> set[type[RecurraError]]:
    """Everything that enumeration finds wrong at y."""
    y, source = graph["y"], graph["x"].domain
    assert isinstance(y.op, Merge)
    out: set[type[RecurraError]] = set()
    for e in points(y.domain, env):
        arms = [k for k, c in enumerate(y.op.when) if holds(c, e)]
        assert len(arms) <= 1, f"{y.op.when} overlap at {e}"
        if not arms:
            out.add(DomainError)
        for ref in (y.args[k] for k in arms):
            if any(evaluate(s.count, e) < 0 for s in ref.slices):
                out.add(ShapeError)
            if not all(within(q, source, e) for q in asked(ref, e)):
                out.add(DomainError)
    return out


def stated(message: str, env: Env) -> list[Env]:
    """The points a message may mean: dims that it does not name may be any."""
    found = re.search(r"\bat ((?:\w+=-?\d+, )*\w+=-?\d+) ", message)
    pairs = [p.split("=") for p in found[1].split(", ")] if found else []
    told = {k: int(v) for k, v in pairs}
    return [e for e in points(Domain(DIMS), env) if told.items() <= e.items()]


def is_counter_example(graph: Graph, message: str, env: Env) -> bool:
    y, source = graph["y"], graph["x"].domain
    assert isinstance(y.op, Merge)
    for e in stated(message, env):
        arms = [k for k, c in enumerate(y.op.when) if holds(c, e)]
        if "not defined at every point" in message:
            if not arms:
                return True
            continue
        for ref in (y.args[k] for k in arms):
            if not message.startswith(f"{ref} reads"):
                continue
            if "negative size" in message:
                that = int(re.search(r"that is (-\d+)", message)[1])  # pyright: ignore
                if any(evaluate(s.count, e) == that < 0 for s in ref.slices):
                    return True
                continue
            text = re.search(r"asks for x\[(.*)\]", message)[1]  # pyright: ignore
            q = tuple(map(int, text.split(",")))
            if q in set(asked(ref, e)) and not within(q, source, e):
                return True
    return False


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(programs())
def test_check_accepts_what_enumeration_accepts(case: tuple[Graph, Env]) -> None:
    graph, env = case
    expected = wrongs(graph, env)
    if not expected:
        check_safety(graph, env)
        return
    with pytest.raises(tuple(expected)) as found:
        check_safety(graph, env)
    message = str(found.value)
    assert is_counter_example(graph, message, env), f"{message}\n{graph}\n{env}"


@settings(max_examples=300, deadline=None)
@given(st.lists(condition(), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 6))
def test_the_first_true_branch_wins_and_no_other_holds(when: list[Expr], s: int, t: int) -> None:
    made = disjoint(when)
    for e in points(Domain(DIMS), {"S": s, "T": t}):
        wins = [holds(c, e) for c in when]
        first = [k == wins.index(True) for k in range(len(when))] if any(wins) else wins
        assert [holds(c, e) for c in made] == first


@pytest.mark.parametrize(
    ("when", "kept"),
    [
        ((("==", 0), (">=", 1)), True),
        ((("==", 100), (">=", 101)), True),
        ((("==", 100), (">=", 50)), False),
        ((("<", Sym("T") - 1), ("==", Sym("T") - 1)), True),
        ((("==", 0), ("==", Sym("T") - 1)), False),
    ],
)
def test_disjoint_conditions_stay_as_written(when: Any, kept: bool) -> None:
    written = tuple(compare(op, Sym("t"), e) for op, e in when)
    assert (disjoint(list(written)) == written) is kept


def test_strides_of_one_dim_stay_as_written() -> None:
    written = [compare("==", mod(Sym("t"), 4), k) for k in range(4)]
    assert disjoint(written) == tuple(written)


@settings(max_examples=300, deadline=None)
@given(affine(), condition(), st.integers(1, 3), st.integers(1, 5))
def test_intervals_are_never_too_narrow(e: Expr | int, where: Expr, s: int, t: int) -> None:
    box = {"s": (0, s - 1), "t": (0, t - 1), "S": (s, s), "T": (t, t)}
    held = [p for p in points(Domain(DIMS), {"S": s, "T": t}) if holds(where, p)]
    small = narrow(box, where)
    if small is None:
        assert not held
        return
    lo, hi = span(e, small)
    for p in held:
        assert lo <= evaluate(e, p) <= hi
        assert all(a <= p[d] <= b for d, (a, b) in small.items())


@st.composite
def knots(draw: st.DrawFn) -> tuple[Graph, Env]:
    """Merges that read each other, or a constant, at the same point."""
    names = "uvw"[: draw(st.integers(1, 3))]
    domain = Domain(DIMS[1:])
    nodes = {"c": Node("c", Const(value=1.0), (), Domain(), SCALAR)}
    for n in names:
        cut = draw(st.integers(0, 4))
        where = compare(draw(st.sampled_from(["==", "<", ">="])), Sym("t"), cut)
        read = [draw(st.sampled_from(["c", *names])) for _ in range(2)]
        refs = tuple(Ref(r, domain.identity if r != "c" else ()) for r in read)
        nodes[n] = Node(n, Merge(when=disjoint([where, TRUE])), refs, domain, SCALAR)
    return Graph(nodes, tuple(names), tuple(map(Dim, DIMS[1:]))), {"T": draw(st.integers(1, 5))}


def knotted(graph: Graph, e: Env) -> bool:
    for start in graph.outputs:
        name, seen = start, set[str]()
        while name != "c" and name not in seen:
            seen.add(name)
            op = graph[name].op
            assert isinstance(op, Merge)
            name = graph[name].args[op.arm(e)].name
        if name != "c":
            return True
    return False


@settings(max_examples=200, deadline=None)
@given(knots())
def test_a_point_that_needs_itself_is_found_wherever_it_is(case: tuple[Graph, Env]) -> None:
    graph, env = case
    bad = [e for e in points(graph[graph.outputs[0]].domain, env) if knotted(graph, e)]
    if not bad:
        check_safety(graph, env)
        return
    with pytest.raises(ScheduleError) as found:
        check_safety(graph, env)
    told = re.search(r"at t=(\d+), T", str(found.value))
    assert told is not None
    assert int(told[1]) in [e["t"] for e in bad]
