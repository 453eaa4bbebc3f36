"""Loops whose steps are nearly alike: compiled as one body if their steps take long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from program_checks import compiled, oracle
from random_cases import QUICK
from random_programs import Case, programs
from recurra.backends.registry import backend_of
from recurra.codegen import predication
from recurra.codegen.loop_segments import segments
from recurra.reference import interpreter
from recurra.schedule.tree import Loop, members

STEPS = 6


def program(width: int, **options: Any) -> rc.Executable:
    """A state that is a product of `width` rows, and the mean of all of its sums up to now."""
    ctx = rc.Context(dims="i")
    with ctx as ((i, n),):
        w = rc.input(rc.f32[width, width], name="w")
        h = rc.like(rc.f32[width, width], (i,), name="h")
        h[0] = w
        h[i + 1] = (h[i] @ w).tanh()
        mean = rc.like(rc.f32, (i,), name="mean")
        mean[0] = h.sum()
        mean[i] = mean[i - 1] * 0.5 + h.sum().exp().tanh()
        rc.output(mean=mean)
    return ctx.compile({n: STEPS}, **options)


def stretches(made: rc.Executable) -> list[list[tuple[int, int]]]:
    """The stretches of each outermost loop."""
    plan = made.compiled.program.plan
    loops = [x for x in plan.schedule.items if isinstance(x, Loop)]
    found = (segments(plan.statements, x, frozenset(members(x.body)), plan.sizes) for x in loops)
    return [[(s.lo, s.hi) for s in x] for x in found]


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_long_step_is_compiled_once(backend: str) -> None:
    """What begins a step later is asked for: a question is little beside a large product."""
    made = program(400, backend=backend)
    some = made.compiled.program.plan.schedule.predicated
    assert some
    assert all(len(x) == 1 for x in stretches(made))
    w = np.random.default_rng(0).standard_normal((400, 400)).astype(np.float32) / 20
    want = interpreter.run(made.source_graph, made.sizes, {"w": w})
    got = made.run(inputs={"w": w})["mean"]
    np.testing.assert_allclose(got, want[made.logs["mean"]], rtol=1e-4)


def test_a_short_step_is_compiled_as_often_as_it_differs() -> None:
    made = program(2)
    assert not made.compiled.program.plan.schedule.predicated
    assert any(len(x) > 1 for x in stretches(made))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_random_programs_that_ask_whatever_it_costs(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predication, "MAX_PREDICATE_SHARE", 1e9)

    @settings(QUICK, max_examples=20 if backend == "numpy" else 6)
    @given(programs(), st.sampled_from([2, None]))
    def check(case: Case, chunk: int | None) -> None:
        compiled(case, backend_of(backend), oracle(case), vectorized=False, launch_steps=chunk)

    check()
