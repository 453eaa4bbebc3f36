"""Ends that are asked for every few steps: nothing of the steps past the last end is seen."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import recurra as rc
from ended_rows import by_backend
from recurra.backends.numpy.numpy_backend import NumpyBackend, NumpyMachine
from recurra.backends.torch import region
from recurra.codegen.region_function import argument_types, region_function
from recurra.errors import DomainError
from walked_numpy import WalkedNumpy

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
LIMITS = np.array([3.0, 6.0, 5.0], np.float32)
MOST = 13


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize(("seed", "every"), [(5, 3), (13, 5), (1011, 4)])
@BACKENDS
def test_every_row_is_what_it_is_alone(seed: int, every: int, backend: str) -> None:
    by_backend(seed, backend, every)


def counting(every: int | None, most: int | None = MOST, learns: bool = False) -> Any:
    """Row b counts from 0 up to LIMITS[b] - 1; what learns runs at several delays behind it."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        w = rc.constant(np.float32(0.7))
        limit = rc.constant(LIMITS).index(b)
        x = rc.like(rc.f32, domain=(b, t))
        x[b, 0] = limit * 0
        x[b, t + 1] = x + 1.0
        h = rc.like(rc.f32, domain=(b, t))
        h[b, 0] = x[b, 0]
        h[b, t + 1] = (h * 0.5 + x * w).tanh()
        ends = rc.until(x + 1.5 > limit, max=most, every=every)
        rc.output(total=x[b, 0:T].sum(), last=h[b, T - 1], n=rc.value(T))
        if learns:
            loss = (h[b, t : rc.min(t + 3, T)].discounted_sum(0.9) * h)[0:B, 0:T].mean()
            loss.backward(wrt=[w])
            rc.output(x=x, ahead=h[b, t:T].sum(), loss=loss, d_w=w.grad)
    return ctx, {B: len(LIMITS), T: ends}


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@BACKENDS
@pytest.mark.parametrize(("most", "learns"), [(MOST, True), (MOST, False), (None, False)])
def test_what_is_put_out_does_not_depend_on_it(backend: str, most: Any, learns: bool) -> None:
    def made(every: int) -> dict[str, Any]:
        ctx, bounds = counting(every, most, learns)
        return ctx.compile(bounds, backend=backend).run()

    want = made(1)
    for every in (4, 50):
        for name, x in made(every).items():
            np.testing.assert_allclose(x, want[name], rtol=1e-6, err_msg=f"{name}, {every}")


def steps_run(every: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Steps of the loop that finds out where rows end."""
    until, seen = NumpyMachine.while_loop, list[int]()

    def counted(
        self: Any, dim: Any, lo: Any, hi: Any, end: Any, late: Any, n: int, body: Any, c: Any
    ):
        def one(time: Any, carry: Any) -> Any:
            seen.append(time)
            return body(time, carry)

        return until(self, dim, lo, hi, end, late, n, one, c)

    monkeypatch.setattr(NumpyMachine, "while_loop", counted)
    ctx, bounds = counting(every)
    ctx.compile(bounds, backend=WalkedNumpy()).run()
    assert seen == list(range(len(seen)))
    return len(seen)


# The first step, which has none before it, is a loop of its own; the longest row has five more.
LEFT = MOST - 1


@pytest.mark.parametrize("every", [1, 2, 4, 5, 9, 50])
def test_less_than_every_steps_are_run_past_the_end(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps_run(every, monkeypatch) == 1 + min(-(-5 // every) * every, LEFT)


@pytest.mark.parametrize("every", [2, 4, 5, 50])
def test_torch_is_asked_as_often_as_told(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, seen = region.loop_end, list[int]()

    def counted(flags: Any, more: Any, now: bool, end: int, after: int) -> int:
        seen.extend([len(flags) + 1] * now)
        return asked(flags, more, now, end, after)

    monkeypatch.setattr(region, "loop_end", counted)
    ctx, bounds = counting(every)
    ctx.compile(bounds, backend="torch").run()
    assert seen == [1, *[min(every, LEFT)] * -(-5 // every)]


def test_steps_between_questions_are_a_loop_that_xla_knows() -> None:
    """Of 12 steps two come first, then 5 at a time."""
    ctx, bounds = counting(5)
    program = ctx.compile(bounds, backend="jax")
    (main,) = [r for r in program.compiled.program.regions if r.items]
    run = region_function(program.compiled.plan, main, program.backend.machine)
    arrays = [jax.ShapeDtypeStruct(*a) for a in argument_types(program.compiled.plan, main)]
    text = str(jax.make_jaxpr(run)(jax.ShapeDtypeStruct((), np.uint32), *arrays))
    loop = text.partition(" = while[")[2]
    assert "length=5" in loop
    assert "length=2" in text


@BACKENDS
def test_the_host_is_never_called_past_the_end(backend: str) -> None:
    calls: list[int] = []

    def count(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x + 1

    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        x = rc.like(rc.f32, domain=(b, t))
        x[b, 0] = 0.0
        x[b, t + 1] = rc.call(count, rc.f32, x, batch=(b,))
        rc.output(total=x[0:B, 0:T].sum())
        end = rc.until(x > 3.5, max=9, every=4)
    got = ctx.compile({B: 2, T: end}, backend=backend).run()
    assert (got["total"], len(calls)) == (20, 5)


def test_a_device_that_is_dear_to_ask_is_asked_seldom() -> None:
    ctx, bounds = counting(None)
    program = ctx.compile(bounds, backend="numpy", poll_steps=1.0)
    assert (
        "t: ends asked for every 3 steps (to ask costs 1 of them)"
        in program.compiled.stages.decisions
    )
    ctx, bounds = counting(5)
    program = ctx.compile(bounds, backend="numpy", poll_steps=1.0)
    assert not [x for x in program.compiled.stages.decisions if "asked" in x]
    assert "every=5" in str(program.compiled.plan.graph)
    assert NumpyBackend().target.poll_steps == 0


@pytest.mark.parametrize("every", [0, -1, True, 2.5, "all"])
def test_what_is_no_number_of_steps_is_refused(every: Any) -> None:
    with pytest.raises(DomainError) as error:
        counting(every)
    assert str(error.value).startswith(
        f"a loop cannot ask every {every!r} steps whether rows go on"
    )
    assert "1 or more" in str(error.value)
    assert "test_poll_interval.py" in str(error.value)
