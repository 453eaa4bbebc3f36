"""Loops that the data end, launched in chunks: what is seen does not depend on the launches."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import recurra as rc
from ended_rows import equal, same, seen
from fuzzing import each, seeded_at_length
from random_rows import expected, write
from recurra.backends.numpy.numpy_backend import NumpyMachine
from recurra.codegen.host_program import ChunkLoop
from recurra.cost.thresholds import MAX_POLLED_STEPS, MIN_POLLED_STEPS
from recurra.runtime.executable import Executable
from walked_numpy import WalkedNumpy

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
LIMITS = np.array([3.0, 9.0, 5.0], np.float32)
MOST, LAST = 30, 9  # points of a row at most; of the longest one


def counting(limits: np.ndarray = LIMITS, most: int | None = MOST, **options: Any) -> Executable:
    """Row b counts from 0 up to LIMITS[b] - 1; `h` is left as it is once the row has ended."""
    options = {"backend": "numpy", "launch_steps": 4, **options}
    every = options.pop("every", None)
    behind = options.pop("behind", 0)
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        limit = rc.constant(limits).index(b)
        x = rc.like(rc.f32, domain=(b, t))
        x[b, 0] = limit * 0
        x[b, t + 1] = x + 1.0
        h = rc.like(rc.f32, domain=(b, t))
        h[b, 0] = x[b, 0]
        h[b, t + 1] = (h * 0.5 + x * 0.7).tanh()
        draw = rc.uniform((b, t))
        ends = rc.until(x + 1.5 > limit, max=most, every=every)
        rc.output(total=x[b, 0:T].sum(), last=h[b, T - 1], n=rc.value(T))
        if most is not None:
            rc.output(x=x, h=h, draw=draw)
            rc.output(wide=h.expand(2), late=h[b, rc.max(t - 2, 0)])
        if behind:
            rc.output(ahead=h[b, t : rc.min(t + behind, T)].discounted_sum(0.9))
    return ctx.compile({B: len(limits), T: ends}, **options)


def stretches(program: Executable) -> list[ChunkLoop]:
    return [x for x in program.compiled.program.items if isinstance(x, ChunkLoop)]


# ---- any program


def check(seed: int, backend: str) -> None:
    """Chunks of one step and more, asked for at every step or seldom."""
    pick = random.Random(seed)
    rows, sums = write(seed, mean=True), write(seed, mean=False)
    every, chunk = pick.choice([None, 1, 2, 3]), pick.randint(1, 4)
    program = rows.compile(every, backend=backend, launch_steps=chunk)
    mine = {n: x for n, x in rows.inputs.items() if n in program.source_graph.nodes}
    same(program.run(inputs=mine), expected(rows, sums))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 64, 2))
def test_random_programs(seed: int) -> None:
    check(seed, "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [41])
@BACKENDS
def test_random_programs_on_backends(seed: int, backend: str) -> None:
    check(seed, backend)


@seeded_at_length(0.2)
@BACKENDS
def test_many_random_programs(seeds: range, backend: str) -> None:
    each(seeds, lambda seed: check(seed, backend))


# ---- what is seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "chunk", "behind"),
    [*(("numpy", c, n) for c in (1, 4, 7) for n in (0, 3)), ("jax", 4, 3), ("torch", 4, 3)],
)
def test_results_are_those_of_one_launch(backend: str, chunk: int, behind: int) -> None:
    """To the last bit, also where no row goes on."""
    whole = counting(backend=backend, launch_steps=MOST + 10, behind=behind)
    assert not stretches(whole)
    program = counting(backend=backend, launch_steps=chunk, behind=behind)
    assert stretches(program)
    equal(program.run(seed=5), whole.run(seed=5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "every"), [("numpy", 2), ("numpy", 5), ("jax", 5), ("torch", 5)]
)
def test_steps_that_are_run_past_the_end_are_not_seen(backend: str, every: int) -> None:
    """Of rows that the loop asks about seldom."""
    program = counting(backend=backend, every=every, launch_steps=7)
    equal(program.run(seed=5), counting(backend=backend).run(seed=5))


@BACKENDS
def test_each_launch_gives_the_points_that_it_made(backend: str) -> None:
    program = counting(backend=backend)
    steps, found = seen(program)
    mine = {name: program.outputs[program.logs[name]] for name in ("draw", "x")}
    whole = {
        name: program.compilation.arrange(program.logs[name], found[o]) for name, o in mine.items()
    }
    assert all(x.shape == (3, MOST) for x in whole.values())
    for name, o in mine.items():
        at = [k for s in steps if o in s.points for k in s.points[o]]
        assert at == list(range(LAST))
        parts = [
            program.compilation.arrange(program.logs[name], s.outputs[o])
            for s in steps
            if o in s.outputs
        ]
        made = np.concatenate(parts, axis=1)
        np.testing.assert_array_equal(made, whole[name][:, :LAST])
    np.testing.assert_array_equal(whole["x"][:, LAST:], 0)


def test_no_launch_follows_the_one_in_which_rows_end() -> None:
    steps, _ = seen(counting(launch_steps=4))
    assert [(s.lo, s.hi) for s in steps][-2:] == [(4, 8), (8, 12)]
    ends = np.array([4.0, 8.0], np.float32)
    steps, _ = seen(counting(ends, launch_steps=4))
    assert steps[-1].hi == 8
    steps, _ = seen(counting(np.array([100.0], np.float32), launch_steps=7))
    assert steps[-1].hi == MOST


def test_a_launch_stops_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at its last step."""
    run: list[int] = []
    until: Any = NumpyMachine.while_loop

    def counted(*given: Any) -> Any:
        *ahead, body, carry = given

        def one(time: Any, carry: Any) -> Any:
            run.append(time)
            return body(time, carry)

        return until(*ahead, one, carry)

    monkeypatch.setattr(NumpyMachine, "while_loop", counted)
    counting(launch_steps=7, backend=WalkedNumpy()).run()
    assert run == list(range(LAST))


def test_the_host_part() -> None:
    text = counting(launch_steps=4, behind=3).execution.text
    (name,) = (line.split(" = ")[0].strip() for line in text.splitlines() if " = 30" in line)
    assert name.endswith("_ended")
    assert f"if t >= {name} + 2:\n            break" in text
    assert f"{name} = run.ended({name})" in text
    assert "run.rest({" in text


@pytest.mark.parametrize(
    ("backend", "chunk"), [("numpy", 1), ("numpy", 3), ("jax", 3), ("torch", 3)]
)
def test_a_resumed_run_is_the_run_itself(backend: str, chunk: int) -> None:
    """From any launch on, also the last."""
    program = counting(backend=backend, launch_steps=chunk, behind=2)
    steps, want = seen(program)
    for s in steps:
        rest, got = seen(program, resume=(s.hi, s.variables))
        assert [x.lo for x in rest] == [x.lo for x in steps if x.lo >= s.hi]
        for name, x in got.items():
            whole = want[name]
            axis = next((k for k, n in enumerate(whole.shape) if n != x.shape[k]), None)
            if axis is not None:
                whole = np.moveaxis(np.moveaxis(whole, axis, 0)[-x.shape[axis] :], 0, axis)
            np.testing.assert_array_equal(x, whole, err_msg=f"{name} from {s.hi}")


def test_rows_without_a_limit() -> None:
    program = counting(most=None, launch_steps=4)
    assert stretches(program)
    want = counting(most=MOST, launch_steps=4).run()
    equal(program.run(), {name: want[name] for name in ("total", "last", "n")})


def test_workers_end_together() -> None:
    """Rows of several workers: all of them run as long as one has a row that goes on."""
    limits = np.array([3.0, 9.0, 5.0, 2.0], np.float32)
    one = counting(limits, launch_steps=4).run(seed=5)
    equal(counting(limits, launch_steps=4, workers=2).run(seed=5), one)


# ---- how long a chunk is


def test_a_chunk_is_as_long_as_its_launch_is_cheap_beside_it() -> None:
    """Steps that cost little come in longer chunks, between two bounds."""

    def steps(width: int) -> int:
        ctx = rc.Context(num_dims=2)
        with ctx as ((b, B), (t, T)):
            x = rc.like(rc.f32[width], domain=(b, t))
            w = rc.input(rc.f32[width, width], name="w")
            x[b, 0] = rc.constant(np.ones(width, np.float32))
            x[b, t + 1] = (x @ w).tanh()
            rc.output(x=x)
            end = rc.until(x.sum() > 5.0, max=1000)
        program = ctx.compile({B: 2, T: end}, backend="numpy")
        (size,) = {x.size for x in stretches(program)}
        return size

    assert steps(4) == MAX_POLLED_STEPS
    assert steps(2048) == MIN_POLLED_STEPS
    assert MIN_POLLED_STEPS < steps(1200) < MAX_POLLED_STEPS
