"""REINFORCE as one donated function, by hand, in two layouts: what a compiler should arrive at.

    for i:
      for t:            act; store o a r
      for t backwards:  store g
      statistics
      for z:            learn a tile
      adam

Stores are written in place: one linear chain of versions, each body writes all, then reads all, and
values needed at t+1 travel as loop values. Acting keeps nothing of the network: the learner
computes it again, a tile of Zt·B rows at a time.
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

from benchmarks.core.kernels import BATCH_FIRST, BATCH_LAST, Layout, act
from benchmarks.core.workload import (
    EPS,
    GAMMA,
    Arrays,
    Carried,
    State,
    adam,
    carried,
    contestant,
    reset,
    statistics,
    zeros,
)
from benchmarks.harness import Contestant

LAUNCH = 8  # iterations per call; how many of them run is dynamic


def read(store: jax.Array, t: Any) -> jax.Array:
    """store[t]"""
    return lax.dynamic_index_in_dim(store, t, 0, keepdims=False)


def write(stores: Arrays, t: Any, **values: jax.Array) -> Arrays:
    """The next version of these stores, with values at t."""
    new = {k: lax.dynamic_update_index_in_dim(stores[k], x, t, 0) for k, x in values.items()}
    return stores | new


def returns(r: jax.Array, stores: Arrays) -> Arrays:
    """g[t] = r[t] + γ g[t+1]"""
    T, B = r.shape

    def backwards(j: Any, c: tuple[jax.Array, Arrays]) -> tuple[jax.Array, Arrays]:
        g = read(r, T - 1 - j) + GAMMA * c[0]
        return g, write(c[1], T - 1 - j, g=g)

    return lax.fori_loop(0, T, backwards, (jnp.zeros(B, r.dtype), stores))[1]


def learn(layout: Layout, th: Arrays, stores: Arrays, Zt: int) -> Arrays:
    """The gradient of the loss: an accumulator over tiles of Zt time steps."""
    T, B = stores["r"].shape
    assert T % Zt == 0, "the tiles have one static size"
    mean, std = statistics(stores["r"], stores["g"])

    def tile(z: Any, total: Arrays) -> Arrays:
        o, a, r, g = (
            layout.rows(lax.dynamic_slice_in_dim(stores[k], z * Zt, Zt))
            for k in ("o", "a", "r", "g")
        )
        c = -r * (g - mean) / (std + EPS) / (B * T)
        return {k: total[k] + d for k, d in layout.gradient(th, o, a, c).items()}

    return lax.fori_loop(0, T // Zt, tile, zeros(th))


def region(layout: Layout, B: int, T: int, Zt: int, dtype: DTypeLike) -> Callable[..., Any]:
    """launch(carried, stores, seed, i0, trip ≤ LAUNCH) → carried, stores, lengths [LAUNCH]."""

    def iteration(
        carried: Carried, stores: Arrays, seed: jax.Array, i: Any
    ) -> tuple[Carried, Arrays, jax.Array]:
        def step(t: Any, s: tuple[jax.Array, jax.Array, jax.Array, Arrays]) -> Any:
            o, r, steps, stores = s
            a, next_o, next_r = act(layout, carried.theta, o, r, seed, i, t)
            return next_o, next_r, steps + r, write(stores, t, o=o, a=a, r=r)

        o = jnp.moveaxis(reset(seed, i, B, dtype), -1, layout.axis)
        one, zero = jnp.ones(B, dtype), jnp.zeros(B, dtype)
        _, _, steps, stores = lax.fori_loop(0, T, step, (o, one, zero, stores))
        stores = returns(stores["r"], stores)
        return adam(carried, learn(layout, carried.theta, stores, Zt), i), stores, steps.mean()

    @partial(jax.jit, donate_argnums=(0, 1))
    def launch(c: Carried, stores: Arrays, seed: jax.Array, i0: jax.Array, trip: jax.Array) -> Any:
        def body(ii: Any, s: tuple[Carried, Arrays, jax.Array]) -> Any:
            c, stores, length = iteration(s[0], s[1], seed, i0 + ii)
            return c, stores, s[2].at[ii].set(length)

        return lax.fori_loop(0, trip, body, (c, stores, jnp.zeros(LAUNCH, dtype)))

    return launch


def batch_first(
    B: int, T: int, seed: int, *, Zt: int = 1, dtype: DTypeLike = jnp.float32
) -> Contestant:
    """The region on [rows, features]; the learner takes Zt time steps at once."""
    name = "region, batch first" + (f", Zt={Zt}" if Zt > 1 else "")
    return _contestant(name, BATCH_FIRST, (B, 4), B, T, seed, Zt, dtype)


def batch_last(
    B: int, T: int, seed: int, *, Zt: int = 1, dtype: DTypeLike = jnp.float32
) -> Contestant:
    """The region on [features, columns]: small products run along the batch."""
    name = "region, batch last" + (f", Zt={Zt}" if Zt > 1 else "")
    return _contestant(name, BATCH_LAST, (4, B), B, T, seed, Zt, dtype)


def _contestant(
    name: str,
    layout: Layout,
    observations: tuple[int, int],
    B: int,
    T: int,
    seed: int,
    Zt: int,
    dtype: DTypeLike,
) -> Contestant:
    launch = region(layout, B, T, Zt, dtype)
    key = jnp.uint32(seed)

    def start() -> State:
        return State(carried(seed, dtype), stores(T, B, observations, dtype), 0)

    def advance(state: State, index: int) -> tuple[State, NDArray[Any]]:
        c, ws, i = state
        lengths: list[NDArray[Any]] = []
        for done in range(0, index, LAUNCH):
            trip = min(LAUNCH, index - done)
            c, ws, length = launch(c, ws, key, jnp.int32(i + done), jnp.int32(trip))
            lengths.append(np.asarray(length)[:trip])
        return State(c, ws, i + index), np.concatenate(lengths)

    return contestant(name, start, advance, B * T, same_draws=True)


def stores(T: int, B: int, observations: tuple[int, int], dtype: DTypeLike) -> Arrays:
    """Room for one iteration: o, a, r, g with t leading."""
    o, a = jnp.zeros((T, *observations), dtype), jnp.zeros((T, B), jnp.int32)
    return dict(o=o, a=a, r=jnp.zeros((T, B), dtype), g=jnp.zeros((T, B), dtype))
