"""Short windows along a dim that orders nothing: all of them at once, whatever they are of."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

import recurra as rc
from program_checks import PIPELINE, compiled, oracle, passes
from random_programs import Case
from recurra.backends.numpy.backend import NumpyBackend
from recurra.cost.thresholds import MAX_WINDOW_ELEMENTS
from recurra.ir.text import parse

SIZES = {"B": 3, "T": 9}


def window(rng: random.Random) -> tuple[str, str]:
    """The points at which a range of a few points about t is read, and the range."""
    back, ahead = rng.randrange(4), rng.randrange(1, 4)
    low, high = rng.random() < 0.5, rng.random() < 0.5
    lo = f"max(t-{back},0)" if low else f"t-{back}"
    hi = f"min(t+{ahead},T)" if high else f"t+{ahead}"
    return f"{0 if low else back}<=t<T-{0 if high else ahead - 1}", f"{lo}:{hi}"


def program(rng: random.Random) -> str:
    """Windows of what is drawn and of what is computed, of one row and of all, and of windows."""
    (when, part), (again, second) = window(rng), window(rng)
    source, of = rng.choice("xy"), rng.choice(("sum", "max", "min"))
    rows, axes, own = rng.choice((("b", "(0,)", "b<B,"), ("0:B", "(1,)", "")))
    shape = "f64[]" if own else "f64[B]"
    lines = [
        "dims b<B, t<T",
        "x[b<B,t<T]: f64[] = uniform(id=1, counter=(b, t), dtype='f64')",
        "y[b<B,t<T]: f64[] = tanh(x)",
        f"w[{own}{when}]: {shape} = {of}({source}[{rows},{part}], axes={axes})",
        f"v[b<B,{again}]: f64[] = sum(x[b,{second}], axes=(0,))",
        "last[b<B]: f64[] = sum(y[b,T-2:T], axes=(0,))",
    ]
    return "\n".join([*lines, "return w, v, last"])


@pytest.mark.parametrize("seed", range(4))
def test_windows_of_random_programs_keep_the_answer(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        case = Case(parse(program(rng)), SIZES)
        want = oracle(case)
        passes(case, PIPELINE, want)
        for last in (False, True):
            compiled(case, NumpyBackend(), want, last=last)


def windowed(read: Callable[..., rc.Tensor], backend: str) -> rc.Executable:
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x = rc.input(rc.f32, (b, t))
        rc.output(y=read(x, b, t, steps))
    return ctx.compile({rows: 3, steps: 20}, backend=backend)


def loops_of(program: rc.Executable) -> tuple[str, ...]:
    """The dims that the output y is a loop over."""
    return program.compilation.compiled.plan.graph["y"].domain.dims


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_moving_mean_is_no_loop(backend: str) -> None:
    program = windowed(lambda x, b, t, T: x[b, rc.max(t - 4, 0) : t + 1].mean(), backend)
    assert "t" not in loops_of(program)
    x = np.random.default_rng(0).standard_normal((3, 20), np.float32)
    want = [[x[b, max(t - 4, 0) : t + 1].mean() for t in range(20)] for b in range(3)]
    np.testing.assert_allclose(program.run(inputs={"x": x})["y"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [MAX_WINDOW_ELEMENTS, MAX_WINDOW_ELEMENTS + 1])
def test_long_windows_stay_a_loop(size: int) -> None:
    program = windowed(lambda x, b, t, T: x[b, t : rc.min(t + size, T)].max(), "numpy")
    made = program.compilation.compiled.plan.graph.nodes
    assert ("windows" in made) == (size <= MAX_WINDOW_ELEMENTS)


def test_slopes_of_windows_are_windows() -> None:
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, steps),):
        w = rc.input(rc.f32, (t,))
        y = w[rc.max(t - 2, 0) : t + 1].sum()
        (y * y)[0:steps].sum().backward(wrt=[w])
        assert w.grad is not None
        rc.output(d=w.grad)
    program = ctx.compile({steps: 9}, backend="numpy")
    x = np.arange(9, dtype=np.float32)
    y = np.array([x[max(t - 2, 0) : t + 1].sum() for t in range(9)])
    want = [2 * y[t : t + 3].sum() for t in range(9)]
    np.testing.assert_allclose(program.run(inputs={"w": x})["d"], want, rtol=1e-6)
