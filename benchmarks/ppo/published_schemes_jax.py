"""PureJaxRL's scheme: all of training is one jitted scan; jax.grad; activations computed again.

Written from the published algorithm (Lu et al., "Discovered Policy Optimization", 2022, and the
description of its code). What differs from it, each time in its favor: plain functions stand for
flax and distrax, the environment is ours and takes no keys, no wrapper counts episodes and no
metrics but the mean reward are stacked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from numpy.typing import NDArray

from benchmarks.harness import Contestant
from benchmarks.ppo import environment
from benchmarks.ppo.kernels import BATCH_FIRST, Arrays
from benchmarks.ppo.regions import Carried, Form, adam, begin
from benchmarks.ppo.workload import (
    ADVANTAGE_EPS,
    CLIP,
    ENTROPY,
    GAMMA,
    LAMBDA,
    SAMPLE,
    SEED,
    VALUE,
    Net,
    Work,
    answers,
)
from benchmarks.threefry import uniform

UNROLL = 16  # of the loop of advantages, as published

# (key, i, t, logits [B, ACTIONS]) → actions [B]
Sample = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def by_key(key: jax.Array, i: jax.Array, t: jax.Array, logits: jax.Array) -> jax.Array:
    """The usual draw, by Gumbel noise."""
    return jax.random.categorical(jax.random.fold_in(key, t), logits)


def by_counter(key: jax.Array, i: jax.Array, t: jax.Array, logits: jax.Array) -> jax.Array:
    """The draws that all exact programs share."""
    u = uniform(jnp.uint32(SEED), SAMPLE, i, jnp.arange(len(logits)), t, logits.dtype)
    return (jnp.cumsum(jax.nn.softmax(logits), -1)[:, :-1] < u[:, None]).sum(-1)


def network(theta: Arrays, net: Net, x: jax.Array) -> jax.Array:
    """[.., features] → [.., outputs]"""
    depth = sum(k.startswith(f"{net}_W") for k in theta)
    for k in range(1, depth):
        x = jnp.tanh(x @ theta[f"{net}_W{k}"] + theta[f"{net}_b{k}"])
    return x @ theta[f"{net}_W{depth}"] + theta[f"{net}_b{depth}"]


def ln_p(logits: jax.Array, a: jax.Array) -> jax.Array:
    """ln p of the actions taken."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), a[..., None], -1)[..., 0]


def loss(theta: Arrays, batch: Arrays) -> jax.Array:
    """The published loss of a minibatch; its advantages are normalized here."""
    logits, value = (
        network(theta, "actor", batch["o"]),
        network(theta, "critic", batch["o"])[..., 0],
    )
    near = batch["value"] + jnp.clip(value - batch["value"], -CLIP, CLIP)
    squares = jnp.maximum((value - batch["target"]) ** 2, (near - batch["target"]) ** 2)
    ratio = jnp.exp(ln_p(logits, batch["a"]) - batch["log_p"])
    adv = batch["adv"]
    adv = (adv - adv.mean()) / (adv.std() + ADVANTAGE_EPS)
    policy = -jnp.minimum(ratio * adv, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * adv).mean()
    log_p = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
    return policy + VALUE * 0.5 * squares.mean() - ENTROPY * entropy


def rollout(
    carried: Carried, work: Work, key: jax.Array, i: jax.Array, sample: Sample
) -> tuple[environment.State, Arrays]:
    """The states after T steps, and the steps as the stacked outputs of a scan, [T, B, ..]."""

    def step(state: environment.State, t: jax.Array) -> Any:
        logits = network(carried.theta, "actor", state.x)
        value = network(carried.theta, "critic", state.x)[..., 0]
        a = sample(key, i, t, logits)
        after, r, done = environment.step(jnp, state, a)
        out = dict(o=state.x, a=a, r=r, done=done, value=value, log_p=ln_p(logits, a))
        return after, out

    return lax.scan(step, carried.state, jnp.arange(work.T))


def advantages(steps: Arrays, after: jax.Array) -> jax.Array:
    """Generalized advantages, [T, B]."""

    def back(c: tuple[jax.Array, jax.Array], now: Arrays) -> Any:
        following, after = c
        on = 1.0 - now["done"]
        delta = now["r"] + GAMMA * after * on - now["value"]
        following = delta + GAMMA * LAMBDA * on * following
        return (following, now["value"]), following

    read = {k: steps[k] for k in ("r", "done", "value")}
    start = (jnp.zeros_like(after), after)
    return lax.scan(back, start, read, reverse=True, unroll=UNROLL)[1]


def train(
    work: Work,
    shuffled: bool,
    sample: Sample,
    carried: Carried,
    key: jax.Array,
    i0: jax.Array,
    k: int,
) -> tuple[Carried, jax.Array]:
    """k iterations as one scan; mean rewards and norms of gradients, [k, 2]."""

    def iteration(carried: Carried, i: jax.Array) -> tuple[Carried, jax.Array]:
        mine = jax.random.fold_in(key, i)
        state, steps = rollout(carried, work, mine, i, sample)
        adv = advantages(steps, network(carried.theta, "critic", state.x)[..., 0])
        batch = steps | {"adv": adv, "target": adv + steps["value"]}
        flat = {k: x.reshape(work.T * work.B, *x.shape[2:]) for k, x in batch.items()}
        if shuffled:
            order = jax.random.permutation(mine, work.T * work.B)
            flat = {k: jnp.take(x, order, axis=0) for k, x in flat.items()}
        carried, norm = adam(carried._replace(state=state), jax.grad(loss)(carried.theta, flat), i)
        return carried, jnp.stack([steps["r"].mean(), norm])

    return lax.scan(iteration, carried, i0 + jnp.arange(k))


def _scheme(
    name: str, work: Work, shuffled: bool, seed: int, dtype: DTypeLike, same_draws: bool
) -> Contestant:
    def compiled(sample: Sample) -> Callable[..., Any]:
        whole = partial(train, work, shuffled, sample)
        return jax.jit(whole, static_argnums=3, donate_argnums=0)

    key, form = jax.random.key(seed), Form(BATCH_FIRST)
    timed, exact = compiled(by_key), compiled(by_counter)
    going: list[Any] = []

    def run(index: int) -> NDArray[Any]:
        if not going:
            going.extend([begin(form, work, seed, dtype), 0])
        going[0], metrics = timed(going[0], key, jnp.int32(going[1]), index)
        going[1] += index
        return np.asarray(jax.block_until_ready(metrics))[:, 0]

    def answer() -> Any:
        first = begin(form, work, seed, dtype)
        after, metrics = exact(first, key, jnp.int32(0), 1)
        reward, norm = metrics[0]
        return answers(work, reward, norm, after.m, after.theta)

    return Contestant(name, run, answer, same_draws)


def purejaxrl(work: Work, seed: int = SEED, dtype: DTypeLike = jnp.float32) -> Contestant:
    """As published: the one minibatch is shuffled first."""
    return _scheme("PureJaxRL's scheme", work, True, seed, dtype, True)


def purejaxrl_unshuffled(
    work: Work, seed: int = SEED, dtype: DTypeLike = jnp.float32
) -> Contestant:
    """Without a shuffle that changes nothing: the fair bar."""
    return _scheme("PureJaxRL's scheme, no shuffle", work, False, seed, dtype, True)
