"""What every hand-written REINFORCE shares: parameters, draws, statistics, Adam, and how it is run.

Two hidden layers of 32 tanh, a categorical policy, returns normalized over the live steps,
absorbing episodes. Shapes in brackets: [T, B, feature].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import NDArray

from benchmarks.core import cartpole
from benchmarks.harness import Contestant
from benchmarks.threefry import uniform

WIDTHS = ((4, 32), (32, 32), (32, 2))
GAMMA, LR, BETA1, BETA2, EPS = 0.99, 1e-2, 0.9, 0.999, 1e-8
RESET, SAMPLE = 1, 2  # the numbers of the two random statements: part of the random key
SEED = 7  # of the parameters and of every draw
CHECKED = 3  # iterations whose lengths are compared

Arrays = dict[str, jax.Array]


class Carried(NamedTuple):
    """What one iteration hands to the next."""

    theta: Arrays
    m: Arrays
    v: Arrays


class State(NamedTuple):
    """A program between two iterations; `stores` is its workspace."""

    carried: Carried
    stores: Arrays
    i: int


def initial(seed: int, dtype: DTypeLike = np.float32) -> dict[str, NDArray[Any]]:
    """He-scaled weights, zero biases; a last layer 100 times smaller: a near-uniform policy."""
    rng = np.random.default_rng(seed)
    theta: dict[str, NDArray[Any]] = {}
    for layer, (fan_in, out) in enumerate(WIDTHS, 1):
        scale = np.sqrt(2 / fan_in) * (0.01 if layer == len(WIDTHS) else 1.0)
        theta[f"W{layer}"] = (rng.standard_normal((fan_in, out)) * scale).astype(dtype)
        theta[f"b{layer}"] = np.zeros(out, dtype)
    return theta


def carried(seed: int, dtype: DTypeLike) -> Carried:
    """The first iteration's parameters and zero moments, in buffers of their own."""
    theta = {k: jnp.array(x) for k, x in initial(seed, dtype).items()}
    return Carried(theta, zeros(theta), zeros(theta))


def zeros(arrays: Arrays) -> Arrays:
    """Zeros of the same shapes."""
    return {k: jnp.zeros_like(x) for k, x in arrays.items()}


def reset(seed: jax.Array, i: jax.Array, B: int, dtype: DTypeLike) -> jax.Array:
    """The first observations of iteration i, [B, 4]."""
    return cartpole.reset(
        uniform(seed, RESET, i, jnp.arange(B)[:, None], jnp.arange(4)[None], dtype)
    )


def statistics(r: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation of the returns over the live steps; r is 1 there, else 0."""
    n = r.sum()
    mean = (r * g).sum() / n
    return mean, jnp.sqrt((r * (g - mean) ** 2).sum() / n)


def adam(state: Carried, gradient: Arrays, i: jax.Array) -> Carried:
    """One step of Adam; i counts from 0."""
    theta, m, v = state
    n = (i + 1).astype(gradient["b1"].dtype)
    m = {k: BETA1 * m[k] + (1 - BETA1) * d for k, d in gradient.items()}
    v = {k: BETA2 * v[k] + (1 - BETA2) * d * d for k, d in gradient.items()}
    c1, c2 = 1 - BETA1**n, 1 - BETA2**n
    theta = {k: x - LR * (m[k] / c1) / (jnp.sqrt(v[k] / c2) + EPS) for k, x in theta.items()}
    return Carried(theta, m, v)


def contestant(
    name: str,
    start: Callable[[], State],
    advance: Callable[[State, int], tuple[State, NDArray[Any]]],
    env_steps: int,
    same_draws: bool = True,
) -> Contestant:
    """A program given by its first state and by `advance(state, k)` → (state, k mean lengths).

    The first gradient is read back from Adam's first moment: it started at zero.
    """
    state: State | None = None

    def run(index: int) -> NDArray[Any]:
        nonlocal state
        state, lengths = advance(state or start(), index)
        jax.block_until_ready(state.carried)
        return lengths

    def answer() -> Mapping[str, NDArray[Any]]:
        after, first = advance(start(), 1)
        gradient = {f"d_{k}": np.array(x) / (1 - BETA1) for k, x in after.carried.m.items()}
        parameters = sum(x.size for x in after.carried.theta.values())
        after, rest = advance(after, CHECKED - 1)
        counts = dict(env_steps=env_steps, parameters=parameters, iterations=after.i)
        work = {k: np.array(n) for k, n in counts.items()}
        return {"length": np.concatenate([first, rest]), **gradient, **work}

    return Contestant(name, run, answer, same_draws)
