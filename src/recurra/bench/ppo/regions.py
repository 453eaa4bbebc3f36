"""PPO as one donated function, by hand: the bound that a compiler should reach.

    for i:
      for t:            act; store o a r done v, and what is kept of the networks
      for t backwards:  advantages
      mean, deviation
      for z:            learn a tile of about 512 rows
      norm, adam

Stores are written in place and donated from launch to launch. A tile's rows lie side by side in
them: batch first [tiles, rows, features], batch last [tiles, features, rows].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from recurra.bench.ppo import environment
from recurra.bench.ppo.kernels import (
    BATCH_LAST,
    Arrays,
    Layout,
    Through,
    advantages,
    cotangents,
    forward,
    gradient,
    packed,
    sample,
    unpacked,
)
from recurra.bench.ppo.work import (
    ACTIONS,
    ADVANTAGE_EPS,
    BETA1,
    BETA2,
    EPS,
    LR,
    NETS,
    NORM,
    RESET,
    SAMPLE,
    Net,
    Work,
    initial,
)
from recurra.bench.threefry import uniform

LAUNCH = 4  # iterations per call at most; how many of them run is dynamic


@dataclass(frozen=True)
class Form:
    """One way to write the region; the defaults are the best found at the default sizes."""

    layout: Layout = BATCH_LAST
    keep: bool = True  # activations stored by acting, else computed again by the learner
    rows: int = 512  # of a tile, about
    fused: bool = False  # the first layers of actor and critic as one product
    hoisted: bool = False  # all draws of an iteration before acting, else in its loop
    unroll: int = 8  # of the loop of advantages


class Carried(NamedTuple):
    """What one iteration hands to the next."""

    theta: Arrays
    m: Arrays
    v: Arrays
    state: environment.State


def steps_per_tile(work: Work, rows: int) -> int:
    """The most steps whose rows are no more than `rows`, a divisor of T."""
    return max(
        z for z in range(1, work.T + 1) if work.T % z == 0 and (z == 1 or z * work.B <= rows)
    )


def stores(form: Form, work: Work, dtype: DTypeLike) -> Arrays:
    """Room for one iteration, [tiles, .., rows of a tile]."""
    steps = steps_per_tile(work, form.rows)
    tiles, rows = work.T // steps, steps * work.B

    def room(features: int) -> jax.Array:
        last = form.layout.axis == 0
        return jnp.zeros((tiles, features, rows) if last else (tiles, rows, features), dtype)

    vectors = {k: jnp.zeros((tiles, rows), dtype) for k in ("r", "value")}
    vectors["a"], vectors["done"] = (
        jnp.zeros((tiles, rows), jnp.int32),
        jnp.zeros((tiles, rows), bool),
    )
    kept = {k: room(x) for k, x in _kept_widths(work).items()} if form.keep else {}
    return vectors | {"o": room(work.features)} | kept


def _kept_widths(work: Work) -> dict[str, int]:
    hidden = {f"{net}{k}": work.width for net in NETS for k in range(1, work.depth + 1)}
    return {"log_p": ACTIONS} | hidden


def _kept(through: Through) -> Arrays:
    hidden = {f"{net}{k}": h for net in NETS for k, h in enumerate(through.hidden[net], 1)}
    return {"log_p": through.log_p} | hidden


def _found(tile: Arrays, work: Work) -> Through:
    hidden: dict[Net, list[jax.Array]] = {
        net: [tile[f"{net}{k}"] for k in range(1, work.depth + 1)] for net in NETS
    }
    return Through(hidden, tile["log_p"], tile["value"])


def written(form: Form, store: jax.Array, t: Any, x: jax.Array, B: int) -> jax.Array:
    """The next version of a store, with the rows of step t."""
    steps = store.shape[_rows_axis(form, store)] // B
    t, zero = jnp.asarray(t), jnp.zeros((), jnp.asarray(t).dtype)
    at = [t // steps, zero, zero][: store.ndim]
    at[_rows_axis(form, store)] = t % steps * B
    return lax.dynamic_update_slice(store, x[None].astype(store.dtype), at)


def _rows_axis(form: Form, store: jax.Array) -> int:
    return 2 if store.ndim == 3 and form.layout.axis == 0 else 1


def same(x: Any) -> Any:
    """How partial sums of one worker join: they are whole."""
    return x


@dataclass(frozen=True)
class Part:
    """The rows of one worker: `first` is the number of its first one, `join` sums over workers."""

    n: int  # rows in all, T times the global B
    first: Any = 0
    join: Callable[[Any], Any] = same


def act(
    form: Form, work: Work, th: Arrays, ws: Arrays, state: environment.State, u: jax.Array, t: Any
) -> tuple[environment.State, Arrays]:
    """Step t: the next state, and the stores with what it leaves there."""
    through = forward(form.layout, th, state.x)
    a = sample(form.layout, through.log_p, u)
    after, r, done = environment.step(jnp, state, a, form.layout.axis)
    new = {"o": state.x, "a": a, "r": r, "done": done, "value": through.value}
    new |= _kept(through) if form.keep else {}
    return after, ws | {k: written(form, ws[k], t, x, work.B) for k, x in new.items()}


def learn(form: Form, work: Work, th: Arrays, ws: Arrays, x: jax.Array, part: Part) -> Arrays:
    """The gradient over all stored steps, tile by tile; x is the observation after the last one."""
    flat = {k: ws[k].reshape(work.T, work.B) for k in ("r", "done", "value")}
    after = forward(form.layout, th, x).value
    adv, target = advantages(flat["r"], flat["done"], flat["value"], after, form.unroll)
    mean = part.join(adv.sum()) / part.n
    deviation = jnp.sqrt(part.join(((adv - mean) ** 2).sum()) / part.n)
    weight = (adv - mean) / (deviation + ADVANTAGE_EPS)
    rows = ws["a"].shape
    read = {k: x for k, x in ws.items() if k not in ("r", "done")}
    read |= {"weight": weight.reshape(rows), "target": target.reshape(rows)}

    def tile(z: Any, total: Arrays) -> Arrays:
        now = {k: lax.dynamic_index_in_dim(x, z, 0, keepdims=False) for k, x in read.items()}
        through = _found(now, work) if form.keep else forward(form.layout, th, now["o"])
        d = cotangents(form.layout, through, now["a"], now["weight"], now["target"], part.n)
        found = gradient(form.layout, th, now["o"], through, *d)
        return {k: total[k] + g for k, g in found.items()}

    zeros = {k: jnp.zeros_like(x) for k, x in th.items()}
    return part.join(lax.fori_loop(0, rows[0], tile, zeros))


def adam(c: Carried, gradient: Arrays, i: Any) -> tuple[Carried, jax.Array]:
    """One step, and the gradient's norm before it is held; i counts from 0."""
    theta, m, v, state = c
    norm = jnp.sqrt(
        sum(((g**2).sum() for g in gradient.values()), jnp.zeros((), c.m["actor_b1"].dtype))
    )
    scale = jnp.minimum(1.0, NORM / norm)
    n = (i + 1).astype(norm.dtype)
    m = {k: BETA1 * m[k] + (1 - BETA1) * scale * g for k, g in gradient.items()}
    v = {k: BETA2 * v[k] + (1 - BETA2) * (scale * g) ** 2 for k, g in gradient.items()}
    c1, c2 = 1 - BETA1**n, 1 - BETA2**n
    theta = {k: x - LR * (m[k] / c1) / (jnp.sqrt(v[k] / c2) + EPS) for k, x in theta.items()}
    return Carried(theta, m, v, state), norm


def iteration(
    form: Form, work: Work, part: Part, c: Carried, ws: Arrays, seed: Any, i: Any
) -> tuple[Carried, Arrays, jax.Array, jax.Array]:
    """Acting and learning; also the mean reward and the gradient's norm."""
    th = packed(c.theta) if form.fused else c.theta
    b, dtype = part.first + jnp.arange(work.B), c.m["actor_b1"].dtype

    def draws(t: Any) -> jax.Array:
        return uniform(seed, SAMPLE, i, jnp.expand_dims(b, range(jnp.ndim(t) - 1)), t, dtype)

    table = draws(jnp.arange(work.T)[:, None]) if form.hoisted else None

    def step(t: Any, s: tuple[environment.State, Arrays]) -> Any:
        return act(form, work, th, s[1], s[0], draws(t) if table is None else table[t], t)

    state, ws = lax.fori_loop(0, work.T, step, (c.state, ws))
    found = unpacked(learn(form, work, th, ws, state.x, part))
    after, norm = adam(c._replace(state=state), found, i)
    return after, ws, part.join(ws["r"].sum()) / part.n, norm


def region(form: Form, work: Work) -> Callable[..., Any]:
    """launch(carried, stores, seed, i0, trip ≤ LAUNCH) → carried, stores, metrics [2, LAUNCH]."""
    return jax.jit(partial(launch, form, work, Part(work.B * work.T)), donate_argnums=(0, 1))


def launch(
    form: Form, work: Work, part: Part, c: Carried, ws: Arrays, seed: Any, i0: Any, trip: Any
) -> tuple[Carried, Arrays, jax.Array]:
    """Up to LAUNCH iterations from i0 on."""

    def body(ii: Any, s: tuple[Carried, Arrays, jax.Array]) -> Any:
        c, ws, reward, norm = iteration(form, work, part, s[0], s[1], seed, i0 + ii)
        return c, ws, s[2].at[:, ii].set(jnp.stack([reward, norm]))

    metrics = jnp.zeros((2, LAUNCH), c.m["actor_b1"].dtype)
    return lax.fori_loop(0, trip, body, (c, ws, metrics))


def begin(form: Form, work: Work, seed: int, dtype: DTypeLike) -> Carried:
    """The first iteration's parameters, zero moments and the environments' first states."""
    theta = {k: jnp.array(x) for k, x in initial(work, seed, np.dtype(dtype)).items()}
    zeros = [{k: jnp.zeros_like(x) for k, x in theta.items()} for _ in "mv"]
    u = uniform(jnp.uint32(seed), RESET, jnp.int32(0), jnp.arange(work.B), 0, dtype)
    state = environment.reset(jnp, u, work.features, form.layout.axis)
    return Carried(theta, zeros[0], zeros[1], jax.tree.map(jnp.array, state))
