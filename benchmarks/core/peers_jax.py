"""REINFORCE written by hand in five ways, from two donated regions to a Python loop.

Each `make(B, T, seed)` starts from `initial(seed)` and, except one, draws the numbers of
`threefry.uniform`: the same episodes, the same gradients.
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

from benchmarks.core import cartpole
from benchmarks.core.kernels import BATCH_FIRST, act
from benchmarks.core.regions import batch_first, batch_last, learn, returns, stores, write
from benchmarks.core.workload import (
    EPS,
    GAMMA,
    SAMPLE,
    Arrays,
    Carried,
    State,
    adam,
    carried,
    contestant,
    initial,
    reset,
    statistics,
)
from benchmarks.harness import Contestant
from benchmarks.threefry import uniform

__all__ = [
    "batch_first",
    "batch_last",
    "initial",
    "python_loop",
    "scan_grad",
    "scan_grad_jax_random",
]

# (seed, i, t, logits [B, 2]) → actions [B]
Sample = Callable[[jax.Array, jax.Array, Any, jax.Array], jax.Array]


def logits(th: Arrays, x: jax.Array) -> jax.Array:
    """[.., 4] → [.., 2]"""
    h = jnp.tanh(jnp.tanh(x @ th["W1"] + th["b1"]) @ th["W2"] + th["b2"])
    return h @ th["W3"] + th["b3"]


def sample_counted(seed: jax.Array, i: jax.Array, t: Any, y: jax.Array) -> jax.Array:
    """Actions from the draws that all exact programs share."""
    u = uniform(seed, SAMPLE, i, jnp.arange(len(y)), t, y.dtype)
    return (u > jax.nn.softmax(y)[:, 0]).astype(jnp.int32)


def sample_jax(seed: jax.Array, i: jax.Array, t: Any, y: jax.Array) -> jax.Array:
    """Actions from jax.random, the usual way."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), i), t)
    return jax.random.categorical(key, y)


def rollout(
    th: Arrays, seed: jax.Array, i: jax.Array, B: int, T: int, dtype: DTypeLike, sample: Sample
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Observations [T, B, 4], actions and rewards [T, B], as the stacked outputs of a scan."""

    def step(c: tuple[jax.Array, jax.Array], t: jax.Array) -> Any:
        o, r = c
        a = sample(seed, i, t, logits(th, o))
        moved, done = cartpole.step(o, a)
        alive = jnp.where(done, 0.0, r).astype(r.dtype)
        return (jnp.where(alive[:, None] > 0, moved, o), alive), (o, a, r)

    first = (reset(seed, i, B, dtype), jnp.ones(B, dtype))
    return lax.scan(step, first, jnp.arange(T))[1]


def advantages(r: jax.Array) -> jax.Array:
    """Discounted returns, normalized over the live steps and zero elsewhere, [T, B]."""

    def step(g: jax.Array, r: jax.Array) -> tuple[jax.Array, jax.Array]:
        g = r + GAMMA * g
        return g, g

    g = lax.scan(step, jnp.zeros_like(r[0]), r, reverse=True)[1]
    mean, std = statistics(r, g)
    return r * (g - mean) / (std + EPS)


def scan_grad(B: int, T: int, seed: int, *, dtype: DTypeLike = jnp.float32) -> Contestant:
    """The ordinary formulation: scan with stacked outputs, then jax.grad over the whole batch."""
    return _scan_grad("scan + jax.grad", sample_counted, B, T, seed, dtype)


def scan_grad_jax_random(
    B: int, T: int, seed: int, *, dtype: DTypeLike = jnp.float32
) -> Contestant:
    """The same with actions from jax.random: other episodes, the same work."""
    return _scan_grad("scan + jax.grad, jax.random", sample_jax, B, T, seed, dtype)


def _scan_grad(
    name: str, sample: Sample, B: int, T: int, seed: int, dtype: DTypeLike
) -> Contestant:
    @partial(jax.jit, donate_argnums=2)
    def iteration(seed: jax.Array, i: jax.Array, carried: Carried) -> tuple[Carried, jax.Array]:
        o, a, r = rollout(carried.theta, seed, i, B, T, dtype, sample)
        adv = advantages(r)

        def loss(th: Arrays) -> jax.Array:
            log_p = jax.nn.log_softmax(logits(th, o))
            return -(jnp.take_along_axis(log_p, a[..., None], -1)[..., 0] * adv).mean()

        return adam(carried, jax.grad(loss)(carried.theta), i), r.sum(0).mean()

    def advance(state: State, index: int) -> tuple[State, NDArray[Any]]:
        c, lengths = state.carried, []
        for i in range(state.i, state.i + index):
            c, length = iteration(key, jnp.int32(i), c)
            lengths.append(length)
        return State(c, {}, state.i + index), np.array([float(x) for x in lengths])

    key = jnp.uint32(seed)
    return contestant(
        name,
        lambda: State(carried(seed, dtype), {}, 0),
        advance,
        B * T,
        same_draws=sample is sample_counted,
    )


def python_loop(B: int, T: int, seed: int, *, dtype: DTypeLike = jnp.float32) -> Contestant:
    """The batch-first region's kernels and learner, but Python drives t: one jitted call a step."""

    @partial(jax.jit, donate_argnums=(1, 2, 3, 4))
    def step(
        th: Arrays, ws: Arrays, o: jax.Array, r: jax.Array, steps: jax.Array, i: Any, t: Any
    ) -> Any:
        a, next_o, next_r = act(BATCH_FIRST, th, o, r, key, i, t)
        return write(ws, t, o=o, a=a, r=r), next_o, next_r, steps + r

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(carried: Carried, ws: Arrays, steps: jax.Array, i: Any) -> Any:
        ws = returns(ws["r"], ws)
        return adam(carried, learn(BATCH_FIRST, carried.theta, ws, 1), i), ws, steps.mean()

    def iteration(carried: Carried, ws: Arrays, i: jax.Array) -> tuple[Carried, Arrays, jax.Array]:
        o, r, steps = first(key, i), jnp.ones(B, dtype), jnp.zeros(B, dtype)
        for t in times:
            ws, o, r, steps = step(carried.theta, ws, o, r, steps, i, t)
        return update(carried, ws, steps, i)

    def advance(state: State, index: int) -> tuple[State, NDArray[Any]]:
        (c, ws, i0), lengths = state, []
        for i in range(i0, i0 + index):
            c, ws, length = iteration(c, ws, jnp.int32(i))
            lengths.append(length)
        return State(c, ws, i0 + index), np.array([float(x) for x in lengths])

    first = jax.jit(lambda seed, i: reset(seed, i, B, dtype))
    key, times = jnp.uint32(seed), [jnp.int32(t) for t in range(T)]
    return contestant(
        "Python loop over jitted steps",
        lambda: State(carried(seed, dtype), stores(T, B, (B, 4), dtype), 0),
        advance,
        B * T,
    )
