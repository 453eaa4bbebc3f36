"""The oracle of the PPO bench, against finite differences, jax.grad and closed forms."""

from __future__ import annotations

from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.ppo import environment
from benchmarks.ppo.oracle import advantages, gradient, learned, loss, normalized, recorded, start
from benchmarks.ppo.workload import Work, initial
from ppo_batches import episodes, older, theta_of

SMALL = Work(B=3, T=5, width=4, depth=2, features=6)


def prepared(work=SMALL, seed=1):
    theta = theta_of(work, seed)
    batch = older(episodes(work, theta, seed), seed)
    adv, target = advantages(theta, batch)
    return theta, batch, normalized(adv), target


def test_the_gradient_is_the_slope_of_the_loss():
    """Along random directions, also of single parameters."""
    theta, batch, adv, target = prepared()
    slopes = gradient(theta, batch, adv, target)
    rng = np.random.default_rng(0)
    for k in [*theta, *[None] * 5]:
        way = {j: rng.standard_normal(x.shape) * (k in (j, None)) for j, x in theta.items()}
        up, down = (
            loss({j: x + h * way[j] for j, x in theta.items()}, batch, adv, target)
            for h in (1e-6, -1e-6)
        )
        along = sum((slopes[j] * way[j]).sum() for j in theta)
        assert (up - down) / 2e-6 == pytest.approx(along, rel=1e-5, abs=1e-8), k


def loss_in_jax(theta, batch, adv, target, depth):
    """The losses as they are published, in jax.numpy."""

    def net(name, x):
        for k in range(1, depth + 1):
            x = jnp.tanh(x @ theta[f"{name}_W{k}"] + theta[f"{name}_b{k}"])
        return x @ theta[f"{name}_W{depth + 1}"] + theta[f"{name}_b{depth + 1}"]

    log_p = jax.nn.log_softmax(net("actor", batch["o"][:-1]))
    value = net("critic", batch["o"][:-1])[..., 0]
    ratio = jnp.exp(jnp.take_along_axis(log_p, batch["a"][..., None], -1)[..., 0] - batch["log_p"])
    policy = jnp.maximum(-adv * ratio, -adv * jnp.clip(ratio, 0.8, 1.2)).mean()
    near = batch["value"] + jnp.clip(value - batch["value"], -0.2, 0.2)
    squares = jnp.maximum((value - target) ** 2, (near - target) ** 2)
    entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
    return policy - 0.01 * entropy + 0.5 * 0.5 * squares.mean()


slopes_in_jax = jax.jit(jax.value_and_grad(loss_in_jax), static_argnums=4)


@pytest.mark.slow
@settings(max_examples=6)
@given(
    st.builds(
        Work, st.integers(1, 4), st.integers(2, 6), st.integers(1, 5), st.integers(1, 3),
        st.integers(4, 7),
    ),
    st.integers(0, 100),
)  # fmt: skip
def test_the_gradient_is_that_of_jax(work, seed):
    theta, batch, adv, target = prepared(work, seed)
    with jax.enable_x64(True):
        value, slopes = slopes_in_jax(theta, asdict(batch), adv, target, work.depth)
        assert loss(theta, batch, adv, target) == pytest.approx(float(value), rel=1e-12)
        for k, x in gradient(theta, batch, adv, target).items():
            np.testing.assert_allclose(x, slopes[k], rtol=1e-9, atol=1e-13)


def test_both_clips_bind_in_these_batches():
    """Else the two tests above would say nothing of them."""
    theta, batch, adv, target = prepared(Work(B=4, T=6, width=4, depth=1, features=5))
    now = recorded(theta, batch.o, batch.a, batch.r, batch.done)
    ratio, moved = np.exp(now.log_p - batch.log_p), now.value - batch.value
    assert (((ratio > 1.2) & (adv > 0)) | ((ratio < 0.8) & (adv < 0))).any()
    assert ((abs(moved) > 0.2) & ((now.value - target) * moved < 0)).any()
    assert (abs(ratio - 1) < 0.2).any()
    assert (abs(moved) < 0.2).any()


def test_advantages_are_sums_of_errors_within_an_episode():
    """A_t = Σ_k (γλ)^k δ_{t+k}, as far as the episode goes."""
    theta, batch, _, _ = prepared(Work(B=4, T=12, width=4, depth=1, features=5))
    assert batch.done.any(), "some episode has to end"
    adv, target = advantages(theta, batch)
    h = np.tanh(batch.o[-1] @ theta["critic_W1"] + theta["critic_b1"])
    last = (h @ theta["critic_W2"] + theta["critic_b2"])[:, 0]
    v = np.concatenate([batch.value, last[None]])
    for b in range(4):
        for t in range(12):
            total, weight = 0.0, 1.0
            for k in range(t, 12):
                on = not batch.done[k, b]
                total += weight * (batch.r[k, b] + 0.99 * on * v[k + 1, b] - v[k, b])
                if not on:
                    break
                weight *= 0.99 * 0.95
            assert adv[t, b] == pytest.approx(total, rel=1e-12)
    assert target == pytest.approx(adv + batch.value)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-3, 1.0], ids=["norm below 0.5", "norm held to 0.5"])
def test_steps_of_adam_are_those_of_optax(scale):
    state = start(initial(SMALL))
    rng = np.random.default_rng(5)
    steps = [{k: scale * rng.standard_normal(x.shape) for k, x in state.theta.items()}] * 3
    with jax.enable_x64(True):
        rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))
        theta = {k: jnp.asarray(x) for k, x in state.theta.items()}
        memory = rule.init(theta)
        for g in steps:
            state = state.after(g)
            change, memory = rule.update(g, memory, theta)
            theta = optax.apply_updates(theta, change)
        for k, x in theta.items():
            np.testing.assert_allclose(state.theta[k], x, rtol=1e-12, atol=1e-15)


@pytest.mark.slow
def test_a_policy_that_acted_itself_is_not_clipped():
    """In the first epoch every ratio is 1: the gradient is that of -A ln p and of ½ (v - R)²."""
    theta = theta_of(SMALL)
    batch = episodes(SMALL, theta)
    g, state = learned(start(theta), batch)
    adv, target = advantages(theta, batch)
    with jax.enable_x64(True):
        wide = jax.grad(loss_in_jax)(theta, asdict(batch), normalized(adv), target, 2)
    for k, x in g.items():
        np.testing.assert_allclose(x, wide[k], rtol=1e-9, atol=1e-12)
    assert state.n == 1


@pytest.mark.slow
@pytest.mark.parametrize("axis", [-1, 0])
def test_the_environment_is_the_same_in_numpy_and_jax(axis):
    rng = np.random.default_rng(3)
    u = rng.random(6).astype(np.float32)
    theirs = environment.reset(jnp, jnp.asarray(u), 8, axis)
    ours = environment.reset(np, u, 8)
    ended = 0
    for _ in range(300):
        a = rng.integers(0, 4, 6)
        ours, reward, done = environment.step(np, ours, a)
        theirs, rewards, dones = environment.step(jnp, theirs, jnp.asarray(a), axis)
        np.testing.assert_allclose(np.moveaxis(theirs.x, axis, -1), ours.x, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(rewards, reward, rtol=1e-5, atol=1e-6)
        assert dones.tolist() == done.tolist()
        ended += done.sum()
    assert ended == sum(300 // n for n in ours.ends)


def test_one_row_of_the_environment_is_the_environment_of_one_row():
    """A compiler may map it over rows."""
    u, a = jnp.linspace(0, 0.9, 5), jnp.arange(5) % 4
    whole = environment.step(jnp, environment.reset(jnp, u, 8), a)
    rows = jax.vmap(lambda u, a: environment.step(jnp, environment.reset(jnp, u, 8), a))(u, a)
    for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(rows), strict=True):
        np.testing.assert_array_equal(x, y)


def test_counts_of_work():
    work = Work()
    assert work.parameters == sum(x.size for x in initial(work).values())
    assert work.flops(keep=True) == pytest.approx(9.7e9, rel=0.01)  # as counted by hand
    assert work.flops(keep=False) == pytest.approx(13.4e9, rel=0.01)
    assert str(Work(width=256)) == "T=250 B=512 width=256"
