"""Functions of JAX over ranges: sizes that come with compile, and change from point to point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_import_jax import CASES

import recurra as rc
from recurra.errors import DomainError, RecurraError

BACKENDS = ("numpy", "jax", "torch")

# ---- of [B] and [B, T]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "distance": lambda a: jnp.square(a - 1.0).mean(),
    "gradient": jax.grad(lambda a: jnp.square(a - 1.0).mean()),
    "spread": lambda a: jnp.std(a) + jnp.var(a),
    "softmax": jax.nn.softmax,
    "slices": lambda a: (a[1:] - a[:-1]) * a[-1],
    "every other": lambda a: a[::2].sum(axis=0),
    "places": lambda a: (a.T * jnp.arange(a.shape[0])).T,
    "flat": lambda a: jnp.concatenate([a.reshape(-1), a.reshape(-1)]),
    "reversed": lambda a: jnp.cumsum(a[::-1], axis=0),
    "the greatest": lambda a: a[jnp.argmax(a.reshape(a.shape[0], -1)[:, 0])],
}


@pytest.mark.slow
@pytest.mark.parametrize("take", [rc.import_jax, rc.jax_fn])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.usefixtures("hasty_xla")
def test_bounds_as_sizes(name: str, take: Any) -> None:
    f = FUNCTIONS[name]
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f32, (b, t), name="x")
        y, z = take(f, "f")(x[0:B, t]), take(f, "f")(x[0:B, 0:T])
        ((y * y).sum() + (z * z).sum() / rc.value(T)).sum().backward(wrt=x)
        rc.output(y=y, z=z, dx=x.grad)

    def both(x: Any) -> Any:
        return jax.vmap(f, 1)(x), f(x)

    values = np.random.default_rng(0).uniform(0.5, 2, (3, 4)).astype("f4")
    want = both(values)
    dx = jax.grad(lambda x: sum((u * u).sum() for u in both(x)))(values)
    for backend in BACKENDS:
        got = ctx.run({B: 3, T: 4}, inputs={"x": values}, backend=backend)
        np.testing.assert_allclose(got["y"], want[0], rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(got["z"], want[1], rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(got["dx"], dx, rtol=2e-5, atol=1e-5)


def test_other_functions_are_one_operation() -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.uniform((b, t))
        rc.output(x=x, y=rc.jax_fn(jnp.sort)(x[0:B, t]), m=rc.jax_fn(jnp.median)(x[b, 0:T]))
    for backend in BACKENDS:
        got = ctx.run({B: 3, T: 5}, backend=backend)
        np.testing.assert_array_equal(got["y"], np.sort(got["x"], axis=0).T)
        np.testing.assert_allclose(got["m"], np.median(got["x"], axis=1), rtol=1e-6)


LATE = [k for k, (_, xs) in CASES.items() if len({x.shape[:1] for x in xs}) == 1 and xs[0].ndim]
NUMBERS = {  # what is written for three rows, and what asks for their number
    "a constant array",
    "a part from a start by data",
    "a scan from behind",
    "a squeeze",
    "a transposed convolution",
    "an element of each row",
    "numbers",
    "parts from starts by data",
    "parts of rows from starts by data",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LATE)
def test_primitives(name: str) -> None:
    """The first axis of every operand, where they are of one length, with a size to come."""
    f, xs = CASES[name]
    ctx = rc.Context(dims="b")
    with ctx as ((b, B),):
        rows = [rc.input(rc.f64[x.shape[1:]], (b,), name=f"x{k}") for k, x in enumerate(xs)]
        if name in NUMBERS:
            with pytest.raises(RecurraError, match=r"cannot be (traced|imported)"):
                rc.import_jax(f, "f")(*(x[0:B] for x in rows))
            return
        rc.output(y=rc.import_jax(f, "f")(*(x[0:B] for x in rows)))
    inputs = {f"x{k}": x for k, x in enumerate(xs)}
    got = ctx.run({B: len(xs[0])}, inputs=inputs, backend="numpy")["y"]
    with jax.enable_x64(True):
        np.testing.assert_allclose(got, f(*map(jnp.asarray, xs)), rtol=1e-12, atol=1e-12)


# ---- of sizes that change from point to point


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "want"),
    [
        (jnp.sum, np.sum),
        (jnp.mean, np.mean),
        (lambda a: a[-1] - a[0], lambda a: a[-1] - a[0]),
        (lambda a: jax.nn.softmax(a) @ a, lambda a: np.exp(a) / np.exp(a).sum() @ a),
    ],
)
def test_lengths_that_change(f: Any, want: Any) -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.uniform((t,))
        y, z = rc.import_jax(f)(x[0 : t + 1]), rc.import_jax(f)(x[rc.max(t - 2, 0) : t + 1])
        (y + 0 * z).backward(wrt=x)
        rc.output(x=x, y=y, z=z, dx=x.grad)
    for backend in BACKENDS:
        got = ctx.run({T: 5}, backend=backend)
        x = np.asarray(got["x"])
        np.testing.assert_allclose(got["y"], [want(x[: k + 1]) for k in range(5)], rtol=1e-5)
        near = [want(x[max(k - 2, 0) : k + 1]) for k in range(5)]
        np.testing.assert_allclose(got["z"], near, rtol=1e-5)
        dx = jax.grad(lambda x: sum(f(x[: k + 1]) for k in range(5)))(x)
        np.testing.assert_allclose(got["dx"], dx, rtol=1e-4, atol=1e-6)


def refusal(f: Any, take: Any = rc.jax_fn) -> str:
    with rc.Context(dims="b t") as ((b, B), (t, T)), pytest.raises(RecurraError) as e:
        take(f, "f")(rc.uniform((b, t))[b, 0 : t + 1])
    return str(e.value)


def test_one_operation_has_operands_of_one_size() -> None:
    assert "hint: take it apart, rc.import_jax(f)" in refusal(jnp.sum)  # as the test above
    assert "hint: give it as many elements everywhere, x[0:T] or x[t:t+3]" in refusal(jnp.sort)


def test_functions_that_ask_for_a_number() -> None:
    def unrolled(a: Any) -> Any:
        return sum(a[k] for k in range(a.shape[0]))

    for take in (rc.import_jax, rc.jax_fn):
        with rc.Context(dims="b") as ((b, B),), pytest.raises(RecurraError) as e:
            take(unrolled)(rc.uniform((b,))[0:B])
        assert "f32[B], and B is a number only when the program is compiled" in str(e.value)
        assert "read a range of as many points as you say: x[0:8]" in str(e.value)
        ctx = rc.Context(dims="b")
        with ctx as ((b, B),):
            x = rc.uniform((b,))
            rc.output(x=x, y=take(unrolled)(x[0:8]))
        got = ctx.run({B: 9}, backend="numpy")
        np.testing.assert_allclose(got["y"], np.sum(got["x"][:8]), rtol=1e-6)
    text = refusal(lambda a: a.reshape(-1, 2), rc.import_jax)
    assert "cannot be traced: InconclusiveDimensionOperation" in text


def test_rows_that_the_data_end() -> None:
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.uniform((b, t))
        done = x > 0.6
        rc.output(n=rc.value(T), x=x, y=rc.import_jax(jnp.mean)(x[b, 0:T]))
    for backend in BACKENDS:
        got = ctx.run({B: 3, T: rc.until(done, max=9)}, backend=backend)
        rows = [row[: int(n)].mean() for row, n in zip(got["x"], got["n"], strict=True)]
        np.testing.assert_allclose(got["y"], rows, rtol=1e-5)


def test_one_operation_takes_no_rows_that_the_data_end() -> None:
    """The function is traced for one length: refused by its name, with what takes it apart."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.uniform((b, t))
        rc.output(y=rc.jax_fn(jnp.mean)(x[b, 0:T]), end=x > 0.6)
        end = rc.until(x > 0.6, max=9)
    with pytest.raises(DomainError) as e:
        ctx.compile({B: 3, T: end})
    assert "mean takes rows that end at different points" in str(e.value)
    assert "rc.import_jax(mean), or let the host call it for one row, rc.call(mean, " in str(
        e.value
    )


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_function_of_several_results_is_called_once_at_a_point(backend: str) -> None:
    """XLA runs a loop twice that stands there twice, one for each result."""
    calls: list[int] = []

    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        jax.debug.callback(lambda: calls.append(1))
        return x.sum(), x * 2.0

    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.like(rc.f32[3], (t,))
        total, twice = rc.jax_fn(both)(x)
        x[0] = 1.0
        x[t + 1] = twice * 0.25 + total
        rc.output(total=total)
    found = ctx.compile({T: 4}, backend=backend).run()["total"]
    jax.effects_barrier()
    np.testing.assert_allclose(found, 3.0 * 3.5 ** np.arange(4))
    assert len(calls) == 4
