"""What is asked for, exactly: as many points as the interpreter computes, and no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given

from random_cases import QUICK
from random_programs import Case, programs
from recurra.analysis import exact_demand
from recurra.analysis.exact_demand import demanded_exactly
from recurra.ir.expr import TRUE, evaluate
from recurra.ir.graph_parser import parse
from recurra.reference import interpreter
from recurra.reference.interpreter import Oracle

RECURRENCE = """
dims t<T
y[t<T]: f32[] = merge(x[0], half, when=(t == 0, t >= 1))
half[1<=t<T]: f32[] = mul(y[max(t-{step},0)], x)
x[t<T]: f32[] = value(expr=t, dtype='f32')
z: f32[] = sum(y[{asked}], axes=(0,))
return z
"""


@pytest.mark.parametrize(
    ("step", "asked", "want"),
    [
        (1, "T-1:T", ""),  # the base, too
        (2, "0:T:2", "t%2 == 0"),
        (3, "7:8", "(t <= 1) | (t == 7) | (t == 4)"),
        (1, "0:5", "t <= 4"),
    ],
)
def test_what_a_recurrence_asks_of_itself(step: int, asked: str, want: str) -> None:
    graph = parse(RECURRENCE.format(step=step, asked=asked))
    found = demanded_exactly(graph, {"T": 5000})
    assert str(found.get("y", "")) == want


def test_for_any_length() -> None:
    graph = parse(RECURRENCE.format(step=2, asked="T-1:T"))
    assert demanded_exactly(graph, {}, {"T": 40})["y"] != TRUE


def test_of_many_equations_in_one_cycle_a_convex_set_is() -> None:
    chain = "\n".join(f"x{k}[t<T]: f32[] = sin(x{k - 1})" for k in range(1, 40))
    text = f"""dims t<T
x0[t<T]: f32[] = merge(c, x39[t-1], when=(t == 0, t >= 1))
{chain}
c: f32[] = const(value=1.0)
z: f32[] = sin(x39[T-2])
return z"""
    assert str(demanded_exactly(parse(text), {"T": 50})["x3"]) == "t <= 48"


def computed(case: Case) -> Iterator[tuple[str, Mapping[str, int], bool]]:
    """Each point of each equation, and whether the interpreter computes it for the outputs."""
    graph = case.graph
    oracle = Oracle(graph, case.sizes, {}, 0)
    for name in graph.outputs:
        interpreter.collect(graph, name, oracle.env, lambda p, name=name: oracle.value(name, p))
    for n in graph.nodes.values():
        envs = [dict(case.sizes)]
        for r in n.domain:
            envs = [
                {**e, r.dim: k} for e in envs for k in range(evaluate(r.lo, e), evaluate(r.hi, e))
            ]
        for env in envs:
            yield n.name, env, (n.name, tuple(env[d] for d in n.domain.dims)) in oracle.memo


@pytest.mark.slow
@QUICK
@given(programs())
def test_no_other_points_than_the_interpreter_computes(case: Case) -> None:
    case = replace(case, graph=case.graph.live())
    found = demanded_exactly(case.graph, case.sizes)
    for name, env, asked in computed(case):
        assert bool(evaluate(found.get(name, TRUE), env)) == asked, (name, env)


@pytest.mark.slow
@QUICK
@given(programs())
def test_of_every_cycle_a_convex_set_has_all_that_the_interpreter_computes(case: Case) -> None:
    case = replace(case, graph=case.graph.live())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_demand, "MAX_DEMAND_ROUNDS", 0)
        patch.setattr(exact_demand, "MAX_CLOSED_EQUATIONS", 0)
        found = demanded_exactly(case.graph, case.sizes)
    for name, env, asked in computed(case):
        assert not asked or evaluate(found.get(name, TRUE), env), (name, env)
