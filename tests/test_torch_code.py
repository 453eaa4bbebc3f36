"""What the Torch backend generates, and that it draws and learns as JAX does."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import recurra as rc
from recurra.backend.torch.region import TorchBackend


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, in itself
def test_fused_kernels_compute_the_same():
    ctx, bounds = decay()
    fused = ctx.compile(bounds, backend=TorchBackend(fuse=True)).run()
    np.testing.assert_allclose(fused["loss"], ctx.run(bounds, backend="numpy")["loss"], rtol=1e-5)


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
def test_arrays_go_in_and_out_without_a_copy(library: str, backend: str):
    ctx, bounds = doubled()
    program = ctx.compile(bounds, backend=backend)
    x, seen = GIVEN[library](), list[int]()
    borrow = program.backend.borrow
    program.backend.borrow = lambda a: seen.append(pointer(y := borrow(a))) or y  # type: ignore
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
