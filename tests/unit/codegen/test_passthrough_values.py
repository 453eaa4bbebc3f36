"""What a region would only hand on is handed on by the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recurra as rc
from acting_programs import World, program
from recurra.codegen.host_program import HostLoop, RegionLaunch, RenamedVariable, renamed_variables
from recurra.codegen.host_source import host_source
from recurra.reference import interpreter

SIZES = {"I": 2, "T": 5}
BACKENDS = ("jax", "numpy", "torch")


def counted(kind: str) -> tuple[rc.Context, list[int]]:
    """A call at every step of what it gave at the step before, beside a state of the program's."""
    seen: list[int] = []

    def look(x: Any, n: Any) -> tuple[Any, ...]:
        seen.append(int(n))
        return np.sin(x + np.float32(n)), np.int32(n + 1)

    def begin(i: Any) -> tuple[Any, ...]:
        return np.float32(i) * np.float32(0.5), np.int32(i * 10)

    ctx = rc.Context(dims="i t")
    with ctx as ((i, _), (t, T)):
        x, n = rc.like(rc.f32, (i, t)), rc.like(rc.i32, (i, t))
        x[i, 0], n[i, 0] = rc.call(begin, (rc.f32, rc.i32), rc.value(i))
        y, after = rc.call(look, (rc.f32, rc.i32), x * 0.5, n)
        x[i, t + 1] = x * 0.9 + y
        match kind:
            case "each step":
                n[i, t + 1] = after
            case "some steps":
                n[i, t + 1] = rc.where(rc.value(t % 2 == 0), after, n + 3)
            case "added to":
                n[i, t + 1] = after + 1
            case _:
                raise AssertionError(kind)
        last, whole = n[i, T - 1], x[i, 0:T].sum()
        rc.output(x=x, last=last, whole=whole)
    return ctx, seen


@pytest.mark.parametrize("kind", ["each step", "some steps", "added to"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_and_calls_are_those_of_the_oracle(backend: str, kind: str) -> None:
    ctx, expected = counted(kind)
    want = interpreter.run(ctx.graph, SIZES)
    ctx, seen = counted(kind)
    made = ctx.compile(SIZES, backend=backend)
    for name, x in made.run().items():
        np.testing.assert_allclose(x, want[name], rtol=2e-6, atol=1e-7)
    assert seen == expected


def test_a_result_that_is_the_next_operand_enters_no_region() -> None:
    ctx, _ = counted("each step")
    made = ctx.compile(SIZES, backend="numpy").compiled.program
    found = renamed_variables(made.items)
    assert RenamedVariable("n", "begin_1") in found
    assert RenamedVariable("n", "look", 1) in found
    assert not any("n" in r.gives for r in made.regions)


def test_weights_of_an_iteration_are_those_of_the_one_before() -> None:
    made = program(World()).compile({"B": 2, "I": 3, "T": 4}, backend="numpy").compiled.program
    assert any(x.variable == "w" and x.result is None for x in renamed_variables(made.items))
    assert not any("w" in r.gives for r in made.regions)


def test_a_region_of_which_nothing_is_left_is_not_launched() -> None:
    """It would take the results of the first call apart."""
    ctx, _ = counted("each step")
    made = ctx.compile(SIZES, backend="numpy").compiled.program
    (outer,) = (x for x in made.items if isinstance(x, HostLoop))
    empty = [x for x in outer.body if isinstance(x, RegionLaunch) and x.region.is_empty]
    assert [[y.variable for y in x.after] for x in empty] == [["begin_0", "begin_1", "begin_2"]]
    assert all(x.region.name not in host_source(made) for x in empty)


@pytest.mark.parametrize("kind", ["some steps", "added to"])
def test_what_a_region_computes_it_gives(kind: str) -> None:
    ctx, _ = counted(kind)
    made = ctx.compile(SIZES, backend="numpy").compiled.program
    assert RenamedVariable("n", "look", 1) not in renamed_variables(made.items)
    assert any("n" in r.gives for r in made.regions)


def test_what_a_region_overwrites_is_not_handed_on() -> None:
    """The sum begins with what the call gave, and is donated with every launch of the last loop."""
    ctx = rc.Context(dims="i t")
    with ctx as ((i, _), (t, T)):
        begun = rc.call(lambda i: np.full(3, i + 1, "f4"), rc.f32[3], rc.value(i))
        total = rc.like(rc.f32[3], (i, t))
        total[i, 0] = begun
        total[i, t + 1] = total + rc.call(lambda x: np.cos(x), rc.f32[3], total)
        last, twice = total[i, T - 1], begun * 2.0
        rc.output(last=last, twice=twice)
    want = interpreter.run(ctx.graph, SIZES)
    for backend in BACKENDS:
        made = ctx.compile(SIZES, backend=backend)
        lowered = made.compiled.program
        donated = {v for r in lowered.regions for v in r.carried}
        found: list[RenamedVariable] = renamed_variables(lowered.items)
        assert not donated & {y for x in found for y in (x.variable, x.source)}
        for name, x in made.run().items():
            np.testing.assert_allclose(x, want[name], rtol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_function_may_not_write_to_what_others_read(backend: str) -> None:
    def add(x: Any) -> Any:
        x += 1
        return x

    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.like(rc.f32[2], (t,))
        x[0] = rc.constant([1.0, 2.0])
        x[t + 1] = rc.call(add, rc.f32[2], x)
        rc.output(sum=x[0:T].sum())
    with pytest.raises(ValueError, match="read-only"):
        ctx.run({"T": 3}, backend=backend)
