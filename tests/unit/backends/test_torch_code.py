"""What the Torch backend generates, and that it draws and learns as JAX does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import recurra as rc
from impatient_terminal import told_at_once
from recurra.backends.torch.region import TorchBackend
from recurra.reference import interpreter


def decay() -> tuple[rc.Context, dict[object, int]]:
    """The README's program."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        decay = rc.nn.Parameter(rc.constant(1.0), domain=(i,), name="decay")
        x = rc.like(rc.f32[()], domain=(i, t))
        x[i, 0] = 1.0
        x[i, t + 1] = decay * x
        loss = (x[i, T - 1] - 0.2).square()
        loss.backward()
        rc.optim.SGD([decay], lr=0.002).step()
        rc.log(decay=decay, loss=loss)
    return ctx, {I: 10, T: 6}


def walk() -> tuple[rc.Context, dict[object, int]]:
    """Draws of several shapes, a window, a maximum, an index by data."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        u = rc.uniform((b, t), (3,))
        x = rc.like(rc.f32[3], domain=(b, t))
        x[b, 0] = 0.0
        x[b, t + 1] = (x * 0.9 + u - 0.5).tanh()
        best = x[b, rc.max(t - 2, 0) : t + 1].max(axis=0)
        rc.output(u=u, best=best, where=x.argmax(), normal=rc.normal((b, t)))
    return ctx, {B: 5, T: 9}


def test_it_says_what_runs():
    ctx, bounds = decay()
    backend = TorchBackend()
    program = ctx.compile(bounds, backend=backend)
    program.run()
    (source,) = [s for s in backend.sources.values() if "for i" in s]
    assert "for t in range(0, 6):" in source
    assert ".copy_(" in source  # stores change in place


def test_it_computes_what_jax_does():
    for program in (decay, walk):
        ctx, bounds = program()
        ours, jax = (ctx.run(bounds, seed=3, backend=b) for b in ("torch", "jax"))
        for name, x in jax.items():
            if name == "u":  # draws are the same bits
                np.testing.assert_array_equal(ours[name], x)
            np.testing.assert_allclose(ours[name], x, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, in itself
def test_fused_kernels_compute_the_same_and_are_told_of(monkeypatch: pytest.MonkeyPatch):
    terminal = told_at_once(monkeypatch)
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.like(rc.f32[3], domain=(t,))
        x[0] = rc.constant(np.array([1.0, -2.0, 0.5], np.float32))
        x[t + 1] = (x * 0.9).sin() + rc.value(t) * 0.1
        rc.output(y=x[0:T].square().sum(axis=0))
    backend = TorchBackend(fuse=True)
    fused = ctx.compile({T: 6}, backend=backend).run()
    assert backend.fused
    lines = [f"recurra: PyTorch compiles {name}\n" for name in backend.fused]
    assert terminal.getvalue() == "".join(["recurra: compiling the program\n", *lines])
    np.testing.assert_allclose(fused["y"], ctx.run({T: 6}, backend="numpy")["y"], rtol=1e-5)


def test_words_are_not_calculated_with():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        rc.output(x=rc.value(t).cast("u32") * 2)
    with pytest.raises(rc.errors.RecurraError, match="unsigned 32-bit"):
        ctx.run({T: 3}, backend="torch")


def doubled() -> tuple[rc.Context, dict[object, int]]:
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.input(rc.f32[16], (t,), name="x")
        rc.output(y=x[0 : t + 1].sum(axis=0) * 2)
    return ctx, {T: 4}


def pointer(x: object) -> int:
    """Where the numbers of an array lie."""
    if isinstance(x, np.ndarray):
        return x.ctypes.data
    return x.data_ptr() if isinstance(x, torch.Tensor) else x.unsafe_buffer_pointer()  # type: ignore[attr-defined]


GIVEN = {
    "torch": lambda: torch.arange(64.0).reshape(4, 16),
    "jax": lambda: jnp.arange(64.0).reshape(4, 16),
}


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("library", GIVEN)
def test_arrays_go_in_and_out_without_a_copy(
    library: str, backend: str, monkeypatch: pytest.MonkeyPatch
):
    ctx, bounds = doubled()
    program = ctx.compile(bounds, backend=backend)
    x, seen = GIVEN[library](), list[int]()
    single = program.runner.single
    assert single is not None
    take = single.arguments

    def taken(given: Mapping[str, object]) -> Mapping[str, Any]:
        arguments = take(given)
        seen.append(pointer(arguments["x"]))
        return arguments

    monkeypatch.setattr(single, "arguments", taken)
    for _ in range(2):  # nothing was donated: it is there the second time
        y = program.run(inputs={"x": x}, native=True)["y"]
        np.testing.assert_array_equal(
            np.from_dlpack(y)[3], np.arange(64.0).reshape(4, 16).sum(0) * 2
        )
    assert seen == [pointer(x)] * 2
    np.testing.assert_array_equal(np.from_dlpack(x), np.arange(64.0).reshape(4, 16))
    there = torch.from_dlpack(y)
    assert there.data_ptr() == pointer(y)


def test_functions_of_jax_are_called():
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        f = rc.jax_fn(lambda x, y: (jnp.sin(x) + y, x * 2))
        s, d = f(rc.uniform((b, t), (3,)), rc.value(t).cast("f32"))
        x = rc.like(rc.f32[3], domain=(b, t))
        x[b, 0] = 0.0
        x[b, t + 1] = x + s - d
        rc.output(x=x)
    ours, jax = (ctx.run({B: 3, T: 5}, backend=k)["x"] for k in ("torch", "jax"))
    np.testing.assert_allclose(ours, jax, rtol=1e-5, atol=1e-6)


def test_any_name_is_a_name():
    """Keywords, what the generated code calls, and what it calls its own values."""
    names = ("lambda", "torch", "number", "range", "seed", "c1", "x3", "v1", "x_4", "y", "y_store")
    ctx = rc.Context(dims="run t")
    with ctx as ((i, I), (t, T)):
        before, shown = rc.uniform((i,), (2,)), dict[str, Any]()
        for k, name in enumerate(names):
            x = rc.like(rc.f32[2], domain=(i, t), name=name)
            x[i, 0] = before
            x[i, t + 1] = x * 0.5 + float(k) + rc.value(t)
            before, shown[f"of_{name}"] = x[i, 0], x
        rc.output(**shown)
    program = ctx.compile({I: 3, T: 4}, backend="torch")
    want = interpreter.run(program.source_graph, program.sizes)
    for name, x in program.run().items():
        np.testing.assert_allclose(x, want[program.logs[name]], rtol=1e-6)


def test_numbers_that_are_none():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.like(rc.f32[()], domain=(t,))
        x[0] = rc.constant([float("nan"), float("-inf")])[0]
        x[t + 1] = x * float("nan")
        y = rc.like(rc.f32[()], domain=(t,))
        y[0] = float("-inf")
        y[t + 1] = y * 2
        rc.output(x=x, y=y)
    found = ctx.run({T: 3}, backend="torch")
    assert np.isnan(found["x"]).all()
    assert (found["y"] == -np.inf).all()


def test_halves_of_floats():
    bf16 = rc.Type("bf16", (2,))
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.like(bf16, domain=(t,))
        x[0] = rc.constant(np.asarray([1, 2], jnp.bfloat16))
        x[t + 1] = x * 0.5 + rc.value(t).cast("bf16")
        rc.output(x=x, total=x[0:T].sum(axis=0))
    ours, jax = (ctx.run({T: 5}, backend=k) for k in ("torch", "jax"))
    for name, x in jax.items():
        assert ours[name].dtype == x.dtype
        np.testing.assert_array_equal(ours[name], x)


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


AWKWARD = {
    "read-only": read_only,
    "backwards": lambda x: x[::-1].copy()[::-1],
    "every other": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "another type": lambda x: x.astype(">f8"),
    "transposed": lambda x: torch.tensor(x.T.copy()).T,
    "with gradient": lambda x: torch.tensor(x, requires_grad=True),
    "with gradient, another type": lambda x: torch.tensor(x, requires_grad=True).double(),
}


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_arrays_that_cannot_be_lent_are_copied(backend: str):
    ctx, bounds = doubled()
    program = ctx.compile(bounds, backend=backend)
    x = np.arange(64.0, dtype=np.float32).reshape(4, 16)
    for name, awkward in AWKWARD.items():
        y = program.run(inputs={"x": awkward(x.copy())})["y"]
        np.testing.assert_array_equal(y, x.cumsum(0) * 2, err_msg=name)


def test_what_is_no_array_is_refused():
    ctx, bounds = doubled()
    x = torch.zeros((4, 16)).to_sparse()
    with pytest.raises(
        rc.errors.RecurraError, match=r"input x .* array of f32\n(.*\n)?.*[Ss]parse"
    ):
        ctx.compile(bounds, backend="numpy").run(inputs={"x": x})


def test_halves_of_torch_are_read_as_they_are():
    ctx, bounds = doubled()
    x = (torch.arange(64) / 8).reshape(4, 16)
    program = ctx.compile(bounds, backend="numpy")
    got, want = (program.run(inputs={"x": y}) for y in (x.to(torch.bfloat16), x))
    for name, y in want.items():
        np.testing.assert_array_equal(got[name], y)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_results_of_a_run_are_left_alone_by_the_next(backend: str):
    ctx, bounds = walk()
    program = ctx.compile(bounds, backend=backend)
    first = program.run(seed=1, native=True)
    was = {name: np.from_dlpack(x).copy() for name, x in first.items()}
    program.run(seed=2, native=True)
    again = program.run(seed=1, native=True)
    for name, x in was.items():
        np.testing.assert_array_equal(first[name], x)
        np.testing.assert_array_equal(again[name], x)


def test_a_recorded_run_gives_arrays_of_the_backend_and_calls_back(tmp_path: Path):
    ctx, bounds = walk()
    program, seen = ctx.compile(bounds, backend="torch"), dict[int, Any]()
    y = program.run(folder=tmp_path, native=True, on_step=seen.__setitem__)
    assert all(isinstance(x, torch.Tensor) for x in y.values())
    assert sorted(seen) == [0]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_is_no_number_stays_none(backend: str):
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x")
        (x.abs()[0:T].sum(axis=0)).backward(wrt=[x])
        rc.output(slope=x.grad, best=x[0:T].max(axis=0), top=rc.maximum(x, 0.0))
    given = {"x": np.array([np.nan, -2.0, 3.0], np.float32)}
    ours, numpy = (ctx.compile({T: 3}, backend=b).run(inputs=given) for b in (backend, "numpy"))
    assert np.isnan(numpy["slope"][0])
    for name, x in numpy.items():
        np.testing.assert_array_equal(ours[name], x)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_function_may_use_its_arrays_again(backend: str):
    ctx, buffer = rc.Context(num_dims=1), np.zeros(2, np.float32)

    def half(x: np.ndarray) -> np.ndarray:
        buffer[:] = x * 0.5 + 1
        return buffer

    with ctx as ((t, T),):
        x = rc.like(rc.f32[2], domain=(t,))
        x[0] = 4.0
        x[t + 1] = rc.call(half, rc.f32[2], x)
        rc.output(x=x)
    program = ctx.compile({T: 4}, backend=backend)
    want = interpreter.run(program.source_graph, program.sizes)
    found = program.run()["x"]
    np.testing.assert_array_equal(found[:, 0], [4, 3, 2.5, 2.25])
    np.testing.assert_array_equal(found, want[program.logs["x"]])
