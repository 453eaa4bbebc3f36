"""Optimizers against optax, step by step: ours, and those of optax as steps of a program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import recurra as rc
from recurra.codegen.host_program import ChunkLoop
from recurra.errors import RecurraError
from recurra.frontend.nn.modules import Parameter

STEPS = 6
RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(5, 3)).astype("f4"), RNG.normal(size=(5, 2)).astype("f4")
START = {"W": RNG.normal(size=(3, 2)).astype("f4"), "b": np.array([0.5, -1.0], "f4")}

Step = Callable[[list[Any], Any], Any]


def program(step: Step) -> tuple[rc.Context, Any, dict[str, Any]]:
    """Least squares: the parameters at every step, and its loss."""
    ctx = rc.Context(num_dims=1)
    with ctx as ((i, I),):
        params = {k: Parameter(rc.constant(v), (i,), k) for k, v in START.items()}
        loss = (rc.constant(X) @ params["W"] + params["b"] - rc.constant(Y)).square().sum()
        loss.backward()
        step([*params.values()], i)
        rc.output(loss=loss, **params)
    return ctx, I, params


def ours(step: Step, backend: str = "numpy") -> dict[str, Any]:
    ctx, I, _ = program(step)
    return ctx.run({I: STEPS}, backend=backend)


def by_optax(tx: Any, **extra: bool) -> dict[str, Any]:
    """The same by hand."""

    def loss(p: dict[str, Any]) -> Any:
        return jnp.sum((X @ p["W"] + p["b"] - Y) ** 2)

    params: Any = {k: jnp.asarray(v) for k, v in START.items()}
    state, rows = tx.init(params), list[Any]()
    for _ in range(STEPS):
        value, grads = jax.value_and_grad(loss)(params)
        rows.append({**params, "loss": value})
        updates, state = tx.update(grads, state, params, **{k: value for k in extra})
        params = optax.apply_updates(params, updates)
    return {k: np.stack([r[k] for r in rows]) for k in rows[0]}


def agree(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert np.abs(want["W"][-1] - want["W"][0]).max() > 1e-3, "nothing moved"
    for k in want:
        np.testing.assert_allclose(got[k], want[k], rtol=2e-5, atol=2e-6, err_msg=k)


def cosine(i: Any) -> Any:
    return (rc.value(i) * (np.pi / STEPS)).cos() * 0.05 + 0.05


def clipped(optimizer: Any, by: Any, limit: float, **options: Any) -> Step:
    def step(params: list[Any], i: Any) -> None:
        by(params, limit)
        optimizer(params, **options).step()

    return step


def plain(optimizer: Any, **options: Any) -> Step:
    return lambda params, i: optimizer(params, **options).step()


Decayed = partial(optax.add_decayed_weights, 0.1)
o = rc.optim
OURS: dict[str, tuple[Step, Any]] = {
    "sgd": (plain(o.SGD, lr=0.01), optax.sgd(0.01)),
    "momentum": (plain(o.SGD, lr=0.01, momentum=0.9), optax.sgd(0.01, momentum=0.9)),
    "nesterov": (
        plain(o.SGD, lr=0.01, momentum=0.8, nesterov=True),
        optax.sgd(0.01, momentum=0.8, nesterov=True),
    ),
    "sgd with weight decay": (
        plain(o.SGD, lr=0.01, weight_decay=0.1),
        optax.chain(Decayed(), optax.sgd(0.01)),
    ),
    "rmsprop": (
        plain(o.RMSprop, lr=0.02, alpha=0.9),
        optax.rmsprop(0.02, decay=0.9, eps_in_sqrt=False),
    ),
    "centered rmsprop with momentum": (
        plain(o.RMSprop, lr=0.01, alpha=0.8, momentum=0.5, centered=True),
        optax.rmsprop(0.01, decay=0.8, momentum=0.5, centered=True, eps_in_sqrt=False),
    ),
    "adam": (plain(o.Adam, lr=0.1), optax.adam(0.1)),
    "adam with a schedule": (
        lambda params, i: o.Adam(params, lr=cosine(i)).step(),
        optax.adam(optax.cosine_decay_schedule(0.1, STEPS)),
    ),
    "adam with weight decay": (
        plain(o.Adam, lr=0.1, weight_decay=0.1),
        optax.chain(Decayed(), optax.adam(0.1)),
    ),
    "adamw": (
        plain(o.AdamW, lr=0.1, betas=(0.8, 0.99), weight_decay=0.3),
        optax.adamw(0.1, 0.8, 0.99, weight_decay=0.3),
    ),
    "clipped by value": (
        clipped(o.SGD, o.clip_grad_value, 0.7, lr=0.1),
        optax.chain(optax.clip(0.7), optax.sgd(0.1)),
    ),
    "clipped by norm": (
        clipped(o.Adam, o.clip_grad_norm, 2.0, lr=0.1),
        optax.chain(optax.clip_by_global_norm(2.0), optax.adam(0.1)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_ours_are_those_of_optax(name: str) -> None:
    step, tx = OURS[name]
    agree(ours(step), by_optax(tx))


def test_a_norm_is_clipped_only_where_it_is_too_large() -> None:
    """Between the first norm and the last: some steps are clipped, others are not."""
    norms: list[Any] = []

    def step(params: list[Any], i: Any) -> None:
        norms.append(o.clip_grad_norm(params, 8.0))
        o.SGD(params, lr=0.05).step()
        rc.log(norm=norms[0])

    got = ours(step, "numpy")
    assert got["norm"][0] > 8.0 > got["norm"][-1]
    agree(got, by_optax(optax.chain(optax.clip_by_global_norm(8.0), optax.sgd(0.05))))


@pytest.mark.parametrize("clip", [o.clip_grad_norm, o.clip_grad_value])
def test_clipped_gradients_keep_the_types_of_their_parameters(clip: Any) -> None:
    """One norm is taken of parameters of several types; the narrower ones were refused."""
    ctx = rc.Context(dims="i")
    with ctx as (i, I):
        narrow = rc.nn.Parameter(rc.constant([3.0, 0.0]), domain=(i,), name="narrow")
        wide = rc.nn.Parameter(rc.constant(4.0, "f64"), domain=(i,), name="wide")
        ((narrow.square().sum() + wide.square()) * 0.5).backward()
        clip([narrow, wide], rc.constant(1.0, "f64"))
        o.Adam([narrow, wide], lr=0.1).step()
        rc.output(narrow=narrow.grad, wide=wide.grad)
    found = ctx.run({I: 1}, backend="numpy")
    want = (0.6, 0.8) if clip is o.clip_grad_norm else (1.0, 1.0)
    np.testing.assert_allclose(found["narrow"][0], [want[0], 0.0], rtol=1e-6)
    np.testing.assert_allclose(found["wide"][0], want[1], rtol=1e-6)
    assert (found["narrow"].dtype, found["wide"].dtype) == (np.float32, np.float64)


COSINE = optax.cosine_decay_schedule(1e-1, STEPS)
THEIRS: dict[str, Any] = {
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(0.1, weight_decay=0.1),
    "sgd with momentum": optax.sgd(0.01, momentum=0.9, nesterov=True),
    "rmsprop": optax.rmsprop(0.05),
    "adagrad": optax.adagrad(0.2),
    "lion": optax.lion(0.02),
    "lamb": optax.lamb(0.05),
    "nadam": optax.nadam(0.1),
    "adabelief": optax.adabelief(0.05),
    "clipped adamw with a schedule": optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(COSINE)
    ),
    "what starts at the parameters": optax.chain(optax.sgd(0.05), optax.ema(0.5)),
    "every other step": optax.MultiSteps(optax.adam(0.1), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", THEIRS)
def test_theirs_as_steps_of_a_program(name: str) -> None:
    tx = THEIRS[name]
    agree(ours(lambda params, i: o.from_optax(tx, params).step()), by_optax(tx))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_step_as_well(backend: str) -> None:
    tx = THEIRS["clipped adamw with a schedule"]
    agree(ours(lambda params, i: o.from_optax(tx, params).step(), backend), by_optax(tx))


def test_a_transformation_may_ask_for_the_loss() -> None:
    tx = optax.chain(optax.sgd(0.05), optax.contrib.reduce_on_plateau(patience=1, cooldown=0))
    losses: list[Any] = []

    def step(params: list[Any], i: Any) -> None:
        loss = (rc.constant(X) @ params[0] + params[1] - rc.constant(Y)).square().sum()
        losses.append(loss)
        o.from_optax(tx, params).step(value=loss)

    agree(ours(step), by_optax(tx, value=True))


def test_weights_are_masked_by_their_names() -> None:
    tx = optax.adamw(0.1, weight_decay=0.5, mask={"W": True, "b": False})
    agree(ours(lambda params, i: o.from_optax(tx, params).step()), by_optax(tx))


def test_state_is_carried_and_donated() -> None:
    ctx, I, _ = program(lambda params, i: o.from_optax(optax.adam(0.1), params).step())
    p = ctx.compile({I: STEPS}, launch_steps=3)
    (loop,) = [x for x in p.compiled.program.items if isinstance(x, ChunkLoop)]
    carried = {str(v) for v in loop.region.carried}
    assert {"count_next", "mu_W_next", "nu_W_next", "mu_b_next", "W_next", "b_next"} <= carried
    agree(p.run(), by_optax(optax.adam(0.1)))


def refusal(f: Callable[[], Any]) -> str:
    with pytest.raises(RecurraError) as e:
        f()
    return str(e.value)


def test_refusals() -> None:
    def nothing_trained() -> None:
        with rc.Context(num_dims=1) as ((i, I),):
            o.Adam([Parameter(rc.constant([1.0]), (i,), "w")]).step()

    def two_domains() -> None:
        with rc.Context(num_dims=2) as ((k, K), (i, I)):
            ps = [
                Parameter(rc.constant([1.0]), (i,), "w"),
                Parameter(rc.constant([1.0]), (k, i), "v"),
            ]
            o.from_optax(optax.adam(0.1), ps)

    def no_dim() -> None:
        with rc.Context(num_dims=1):
            w = Parameter(rc.constant([1.0]), (), "w")
            (w * w).sum().backward()
            o.from_optax(optax.adam(0.1), [w]).step()

    assert "w has no gradient" in refusal(nothing_trained)
    text = refusal(two_domains)
    assert "the parameters of one transformation have several domains" in text
    assert "v is over (k, i), w over (i,)" in text
    assert "w cannot be updated" in refusal(no_dim)
    text = refusal(lambda: o.from_optax(optax.adam, []))
    assert "is no optax transformation" in text
    assert "Nesterov's method needs momentum" in refusal(lambda: o.SGD([], nesterov=True))
