"""PureJaxRL's scheme: all of training is one jitted scan that stacks its steps; jax.grad.

Written from the published algorithm (Lu et al., "Discovered Policy Optimization", 2022, and the
description of its code). Observations stay bytes until they are used, which favors it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from benchmarks.harness import Contestant
from benchmarks.memory import workload as w
from benchmarks.memory.workload import SAMPLE, SEED, Game, Work, answers, initial
from benchmarks.threefry import uniform

Arrays = dict[str, jax.Array]


def network(theta: Arrays, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Pictures [.., 3, side, side] u8 → logits [.., ACTIONS], values [..]

    The convolution is a product of patches: XLA's own takes a hundred times as long on a CPU.
    """
    lead, size = x.shape[:-3], theta["eye_W"].shape[-1]
    flat = x.reshape(-1, 3, w.PLACES, size, w.PLACES, size).astype(jnp.float32) / 255.0
    seen = jnp.einsum("ncyaxb,ocab->noyx", flat, theta["eye_W"])
    seen = jax.nn.relu(seen + theta["eye_b"][:, None, None]).reshape(len(flat), -1)
    seen = jnp.tanh(seen @ theta["body_W"] + theta["body_b"]).reshape(*lead, -1)
    logits = seen @ theta["actor_W"] + theta["actor_b"]
    return logits, (seen @ theta["critic_W"] + theta["critic_b"])[..., 0]


def ln_p(logits: jax.Array, a: jax.Array) -> jax.Array:
    """ln p of the actions taken."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), a[..., None], -1)[..., 0]


def loss(theta: Arrays, batch: Arrays, count: int) -> jax.Array:
    """Of a minibatch whose advantages are ready."""
    logits, value = network(theta, batch["o"])
    log_p, adv = ln_p(logits, batch["a"]), batch["adv"]
    ratio = jnp.exp(log_p - batch["log_p"])
    clipped = jnp.clip(ratio, 1 - w.CLIP, 1 + w.CLIP)
    policy = -adv * log_p if count else jnp.maximum(-adv * ratio, -adv * clipped)
    every = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(every) * every).sum(-1)
    error = 0.5 * jnp.square(value - batch["target"])
    return (policy + w.VALUE * error - w.ENTROPY * entropy).mean()


def rollout(theta: Arrays, game: Game, work: Work, i: jax.Array) -> tuple[Game, Arrays]:
    """The state after T steps, and the steps as the stacked outputs of a scan, [T, B, ..]."""

    def step(game: Game, t: jax.Array) -> tuple[Game, Arrays]:
        o = w.picture(jnp, game, work.side)
        logits, value = network(theta, o)
        u = uniform(jnp.uint32(SEED), SAMPLE, i, jnp.arange(work.B), t, jnp.float32)
        a = (jnp.cumsum(jax.nn.softmax(logits), -1)[:, :-1] < u[:, None]).sum(-1)
        after, r, done = w.step(jnp, game, a)
        return after, dict(o=o, a=a, r=r, done=done, value=value, log_p=ln_p(logits, a))

    return lax.scan(step, game, jnp.arange(work.T))


def advantages(steps: Arrays, after: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Generalized advantages and what values are to be, [T, B]."""

    def back(c: tuple[jax.Array, jax.Array], now: Arrays) -> Any:
        following, after = c
        on = 1.0 - now["done"]
        delta = now["r"] + w.GAMMA * after * on - now["value"]
        following = delta + w.GAMMA * w.LAMBDA * on * following
        return (following, now["value"]), following

    read = {k: steps[k] for k in ("r", "done", "value")}
    adv = lax.scan(back, (jnp.zeros_like(after), after), read, reverse=True, unroll=16)[1]
    return (adv - adv.mean()) / (adv.std() + w.ADVANTAGE_EPS), adv + steps["value"]


def returns(steps: Arrays, count: int) -> tuple[jax.Array, jax.Array]:
    """Discounted sums of the next n rewards, less values; and those sums."""
    T, g = len(steps["r"]), jnp.zeros_like(steps["r"])
    for k in range(min(count, T)):
        g = g.at[: T - k].add(w.GAMMA**k * steps["r"][k:])
    return g - steps["value"], g


def train(work: Work, c: Any, i0: jax.Array, k: int) -> tuple[Any, jax.Array]:
    """k iterations as one scan; mean rewards and norms of gradients, [k, 2]."""

    def iteration(c: Any, i: jax.Array) -> tuple[Any, jax.Array]:
        theta, m, v, game = c
        game, steps = rollout(theta, game, work, i)
        if work.n:
            adv, target = returns(steps, work.n)
        else:
            after = network(theta, w.picture(jnp, game, work.side))[1]
            adv, target = advantages(steps, after)
        batch = steps | {"adv": adv, "target": target}
        flat = {k: x.reshape(work.T * work.B, *x.shape[2:]) for k, x in batch.items()}
        theta, m, v, norm = adam(theta, m, v, jax.grad(loss)(theta, flat, work.n), i)
        return (theta, m, v, game), jnp.stack([steps["r"].mean(), norm])

    return lax.scan(iteration, c, i0 + jnp.arange(k))


def adam(theta: Arrays, arrays: Arrays, v: Arrays, g: Arrays, i: jax.Array) -> Any:
    """A step, of a gradient whose norm is held."""
    norm = jnp.sqrt(sum(jnp.square(x).sum() for x in g.values()))
    g = {k: x * jnp.minimum(1.0, w.NORM / norm) for k, x in g.items()}
    arrays = {k: w.BETA1 * arrays[k] + (1 - w.BETA1) * x for k, x in g.items()}
    v = {k: w.BETA2 * v[k] + (1 - w.BETA2) * x * x for k, x in g.items()}
    one, two = (1 - b ** (i + 1.0) for b in (w.BETA1, w.BETA2))
    theta = {
        k: x - w.LR * (arrays[k] / one) / (jnp.sqrt(v[k] / two) + w.EPS) for k, x in theta.items()
    }
    return theta, arrays, v, norm


def purejaxrl(work: Work) -> Contestant:
    """Without its shuffle of the one minibatch: the fair bar."""
    going: list[Any] = []
    compiled = jax.jit(partial(train, work), static_argnums=2, donate_argnums=0)

    def first() -> Any:
        theta = {k: jnp.asarray(x) for k, x in initial(work).items()}
        m, v = ({k: jnp.zeros_like(x) for k, x in theta.items()} for _ in range(2))
        return theta, m, v, w.begin(jnp, jnp.arange(work.B))

    def run(index: int) -> NDArray[Any]:
        if not going:
            going.extend([first(), 0])
        metrics: list[Any] = []
        for _ in range(index):
            going[0], found = compiled(going[0], jnp.int32(going[1]), 1)
            going[1] += 1
            metrics.append(np.asarray(jax.block_until_ready(found))[:, 0])
        return np.concatenate(metrics)

    def answer() -> Any:
        (theta, m, _, _), metrics = compiled(first(), jnp.int32(0), 1)
        reward, norm = metrics[0]
        return answers(work, reward, norm, m, theta)

    return Contestant("PureJaxRL's scheme", run, answer)
