"""A step of a host loop is one host call and one launch."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from acting_programs import KINDS, World, program
from recurra.codegen.host_program import HostCall, HostLoop, RegionLaunch
from recurra.reference import interpreter
from recurra.runtime.executable import Executable
from recurra.schedule.tree import members

ROWS, ITERATIONS, STEPS = 3, 2, 9


def loop_of(ctx: rc.Context, backend: str) -> tuple[Executable, list[HostLoop]]:
    made = ctx.compile({"B": ROWS, "I": ITERATIONS, "T": STEPS}, backend=backend)
    (outer,) = (it for it in made.compiled.program.items if isinstance(it, HostLoop))
    return made, [it for it in outer.body if isinstance(it, HostLoop)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_results_and_operands_are_those_of_the_oracle(backend: str, kind: str) -> None:
    oracle, world = World(), World()
    sizes = {"B": ROWS, "I": ITERATIONS, "T": STEPS}
    want = interpreter.run(program(oracle, kind).graph, sizes)
    made, _ = loop_of(program(world, kind), backend)
    found = made.run()
    for name, x in found.items():
        np.testing.assert_allclose(x, want[name], rtol=2e-5, atol=1e-6, err_msg=name)
    assert world.calls == oracle.calls == ITERATIONS * STEPS
    for given, before in zip(world.seen, world.copies, strict=True):
        np.testing.assert_array_equal(given, before)  # a host function may keep what it is given


def test_a_step_is_one_launch() -> None:
    _, parts = loop_of(program(World()), "numpy")
    assert [(it.lo, it.hi) for it in parts] == [(0, 1), (1, STEPS), (STEPS, STEPS + 1)]
    assert [[type(x) for x in it.body] for it in parts] == [
        [RegionLaunch],
        [HostCall, RegionLaunch],
        [HostCall, RegionLaunch],
    ]


def test_the_outermost_loop_is_left_as_it_is() -> None:
    """A run is saved between its steps."""
    ctx = rc.Context(dims="t")
    world = World()
    with ctx as ((t, _),):
        o = rc.like(rc.f32, domain=(t,))
        o[0] = 0.5
        r = rc.call(world, rc.f32, o.tanh())
        o[t + 1] = r * 2.0
        rc.log(r=r * r)
    made = ctx.compile({"T": 5}, backend="numpy")
    assert "@-1" not in str(made.compiled.schedule)
    assert str(made.compiled.schedule).index("tanh") < str(made.compiled.schedule).index("World")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_what_no_call_waits_for_is_launched_behind_it(backend: str, kind: str) -> None:
    oracle, world = World(), World()
    sizes = {"B": ROWS, "I": ITERATIONS, "T": STEPS}
    want = interpreter.run(program(oracle, kind).graph, sizes)
    made = program(world, kind).compile(sizes, backend=backend, min_overlapped_ns=0.0)
    for name, x in made.run().items():
        np.testing.assert_allclose(x, want[name], rtol=2e-5, atol=1e-6, err_msg=name)
    for given, before in zip(world.seen, world.copies, strict=True):
        np.testing.assert_array_equal(given, before)


def test_acting_goes_before_learning() -> None:
    def launches(behind: float) -> tuple[Executable, HostLoop]:
        sizes = {"B": ROWS, "I": ITERATIONS, "T": STEPS}
        made = program(World()).compile(sizes, backend="numpy", min_overlapped_ns=behind)
        (outer,) = (it for it in made.compiled.program.items if isinstance(it, HostLoop))
        return made, next(it for it in outer.body if isinstance(it, HostLoop) and it.lo == 1)

    made, steps = launches(0.0)
    call, act, learn = steps.body
    assert (type(call), type(act), type(learn)) == (HostCall, RegionLaunch, RegionLaunch)
    assert isinstance(act, RegionLaunch)
    assert isinstance(learn, RegionLaunch)
    assert isinstance(call, HostCall)
    taken = {a.name for a in made.compiled.plan.graph[call.statement].args}
    now, late = (set(members(x.region.items)) for x in (act, learn))
    assert taken & now
    assert not taken & late
    assert not now & late
    assert sum(s.startswith("+") for s in late) == 3  # the gradient, and what is seen
    _, steps = launches(1e9)
    assert len(steps.body) == 2


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_sum_before_a_call_is_that_of_its_step(backend: str) -> None:
    """A step adds up, calls, and needs the sum: the next step's has not begun by then."""
    ctx = rc.Context(dims="i m s")
    with ctx as ((i, _), (m, M), (s, S)):
        w = rc.like(rc.f32, domain=(i, m))
        w[0, 0] = 0.5
        w[i, 0] = w[i - 1, M - 1]
        x = rc.like(rc.f32, domain=(i, m, s))
        x[i, m, 0] = w
        x[i, m, s + 1] = (x * 1.3 + 0.1).sin()
        called = rc.call(lambda a: a + np.float32(0.25), rc.f32, x[i, m, S - 1])
        total = x[i, m, 0:S].sum()
        w[i, m + 1] = called * (0.2 * total)
        rc.output(w=w, total=total)
    made = ctx.compile({"I": 3, "M": 4, "S": 5}, backend=backend, min_peeled_points=0)
    want = interpreter.run(made.source_graph, made.sizes)
    for name, y in made.run().items():
        np.testing.assert_allclose(y, want[made.logs[name]], rtol=1e-5, err_msg=name)
    assert "+total" in str(made.compiled.schedule)
    assert "call@-1" in str(made.compiled.schedule) or "lambda@-1" in str(made.compiled.schedule)
