"""A run that nobody watches is one launch, where the host has nothing to do in between."""

from __future__ import annotations

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import recurra as rc
from recurra.errors import RecurraError

B, T = 6, 40


def averages(**options: Any) -> rc.Executable:
    """Two outputs over rows and time, neither in the order in which they are made."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, rows), (t, steps)):
        x = rc.input(rc.f32[2], (b, t))
        h = rc.like(rc.f32[2], (b, t))
        h[b, 0] = x[b, 0]
        h[b, t + 1] = h[b, t] * 0.9 + x[b, t + 1]
        rc.output(z=h.sum(), h=h, a=x)
    return ctx.compile({rows: B, steps: T}, **options)


X = np.random.default_rng(0).random((B, T, 2), np.float32)


def by_hand(x: np.ndarray) -> np.ndarray:
    h = [x[:, 0]]
    for t in range(1, x.shape[1]):
        h.append(h[-1] * np.float32(0.9) + x[:, t])
    return np.stack(h, 1)


BACKENDS = ("jax", "numpy", "torch")


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_launch_gives_results_in_the_order_they_were_written(backend: str) -> None:
    program = averages(backend=backend)
    assert program.runner.single is not None
    got = program.run(inputs={"x": X})
    assert [*got] == ["z", "h", "a"]
    np.testing.assert_allclose(got["h"], by_hand(X), rtol=1e-6)
    np.testing.assert_allclose(got["z"], by_hand(X).sum(-1), rtol=1e-5)
    native = program.run(inputs={"x": X}, native=True)
    for name, x in got.items():
        np.testing.assert_array_equal(native[name], x)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize(
    "options", [{"single_launch": False}, {"launch_steps": 8}, {"memory": "1MiB"}]
)
def test_launches_of_several_steps_are_asked_for(options: dict[str, Any]) -> None:
    program = averages(**options)
    assert program.runner.single is None
    for name, x in program.run(inputs={"x": X}).items():
        np.testing.assert_allclose(x, averages().run(inputs={"x": X})[name], rtol=1e-6)


LAYOUTS = {
    "strides": lambda: np.ascontiguousarray(X.transpose(2, 1, 0)).transpose(2, 1, 0),
    "Fortran": lambda: np.asfortranarray(X),
    "read only": lambda: np.frombuffer(X.tobytes(), np.float32).reshape(X.shape),
    "big endian": lambda: X.astype(">f4"),
    "lists": lambda: X.tolist(),
    "jax": lambda: jnp.asarray(X),
    "torch": lambda: torch.from_numpy(X.copy()),
    "torch, with a gradient": lambda: torch.from_numpy(X.copy()).requires_grad_(),
    "torch, strides": lambda: torch.from_numpy(X.transpose(2, 1, 0).copy()).permute(2, 1, 0),
    "halves": lambda: X.astype(ml_dtypes.bfloat16),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_are_taken_in_any_layout(layout: str, backend: str) -> None:
    given = LAYOUTS[layout]()
    want = by_hand(np.asarray(given, np.float32) if layout == "halves" else X)
    program = averages(backend=backend)
    np.testing.assert_allclose(program.run(inputs={"x": given})["h"], want, rtol=1e-6)


def beginning_at(byte: int, shape: tuple[int, ...]) -> np.ndarray:
    """An array of f32 that begins so many bytes behind a multiple of 64."""
    room = np.empty(4 * int(np.prod(shape)) + 128, np.uint8)
    first = -room.ctypes.data % 64 + byte
    return room[first : first + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("columns", [2, 20_000])
@pytest.mark.parametrize("aligned", [False, True])  # on JAX copied with the call, or read in place
def test_results_share_no_memory(native: bool, columns: int, aligned: bool, backend: str) -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, steps),):
        x = rc.input(rc.f32[columns], (t,))
        rc.output(same=x, turned=x[steps - 1 - t], twice=x * 2.0)
    program = ctx.compile({steps: 2}, backend=backend)
    given = beginning_at(4 if not aligned else 0, (2, columns))
    given[:] = np.random.default_rng(1).random((2, columns), np.float32)
    kept = given.copy()
    first = program.run(inputs={"x": given}, native=native)
    before = {name: np.asarray(y).copy() for name, y in first.items()}
    given[:] = 7.0
    second = program.run(inputs={"x": given}, native=native)
    for name, y in first.items():
        np.testing.assert_array_equal(y, before[name])
        assert not np.shares_memory(np.asarray(y), given)
        assert not np.shares_memory(np.asarray(y), np.asarray(second[name]))
        others = (z for n, z in first.items() if n != name)
        assert not any(np.shares_memory(np.asarray(y), np.asarray(z)) for z in others)
    np.testing.assert_array_equal(before["same"], kept)
    if not native:
        first["twice"][:] = 0.0  # the caller's own
    np.testing.assert_array_equal(program.run(inputs={"x": kept})["twice"], kept * 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_run_one_program_at_once(backend: str) -> None:
    program = averages(backend=backend)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda k: program.run(inputs={"x": X * k})["h"], range(160)))
    for k, h in enumerate(made):
        np.testing.assert_allclose(h, by_hand(X * np.float32(k)), rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_runs_within_a_run_of_itself(backend: str) -> None:
    program, inner = averages(backend=backend, launch_steps=3), list[np.ndarray]()

    def watch(first: int, metrics: object) -> None:
        inner.append(program.run(inputs={"x": X * 2.0})["h"])

    outer = program.run(inputs={"x": X}, on_step=watch)["h"]
    assert len(inner) > 1
    np.testing.assert_allclose(outer, by_hand(X), rtol=1e-6)
    for h in inner:
        np.testing.assert_allclose(h, by_hand(X * np.float32(2.0)), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_leave_nothing_behind(backend: str) -> None:
    """Of 200 runs no array, no object and no byte of Python's is left.

    What is left by every run is left twice; a table of the library's that grows, once.
    """
    program = averages(backend=backend)

    def left() -> np.ndarray:
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        return np.array([len(jax.live_arrays()), len(gc.get_objects()), size])

    tracemalloc.start()
    try:
        found = list[np.ndarray]()
        for count in (50, 200, 200):
            for _ in range(count):
                program.run(inputs={"x": X})
            found.append(left())
    finally:
        tracemalloc.stop()
    arrays, objects, size = np.diff(found, axis=0).min(0)
    assert arrays <= 0
    assert objects < 50  # those of this test
    assert size < 10_000


def test_a_host_call_cuts_a_run_into_launches() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, steps),):
        x = rc.call(np.sqrt, rc.f32, rc.value(t, "f32"))
        rc.output(y=x)
    assert ctx.compile({steps: 3}).runner.single is None


def test_what_takes_long_can_be_interrupted_between_launches() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, steps),):
        w = rc.uniform((), (500, 500))
        h = rc.like(rc.f32[500, 500], (t,))
        h[0] = w
        h[t + 1] = (h[t] @ w).tanh()
        rc.output(h=h[steps - 1])
    assert ctx.compile({steps: 100_000}).runner.single is None
    assert ctx.compile({steps: 10}).runner.single is not None


def test_inputs_that_nothing_is_done_with_are_no_launch() -> None:
    assert len(averages(backend="numpy").compiled.program.regions) == 1


def test_a_wrong_input_is_told_as_ever() -> None:
    with pytest.raises(RecurraError, match=r"the input x has the shape"):
        averages().run(inputs={"x": X[:, 1:]})
    with pytest.raises(RecurraError, match=r"that f32 cannot hold"):
        averages().run(inputs={"x": X.astype(np.float64) * 1e300})
