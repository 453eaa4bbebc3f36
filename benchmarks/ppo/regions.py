"""PPO as one donated function, by hand: the bound that a compiler should reach.

    for i:
      for t:            act; store o a r done v, and what is kept of the networks
      for t backwards:  advantages
      mean, deviation
      for z:            learn a tile of about 512 rows
      norm, adam

With `late`, the critic runs forwards and backwards in the loop of the advantages, so that acting
needs no values, and nothing of the critic is stored: in the first epoch its slope v - R is -A.

    for i:
      for t:            act; store o a r done, and what is kept of the actor
      for z backwards:  the critic, advantages, the critic's gradient
      mean, deviation
      for z:            the actor's gradient
      norm, adam

Stores are written in place and donated from launch to launch. A tile's rows lie side by side in
them: batch first [tiles, rows, features], batch last [tiles, features, rows].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from benchmarks.ppo import environment
from benchmarks.ppo.kernels import (
    BATCH_LAST,
    Arrays,
    Layout,
    Through,
    advantages,
    cotangents,
    critic_backwards,
    forward,
    forward_one,
    gradient,
    gradient_one,
    log_softmax,
    of_logits,
    packed,
    sample,
    unpacked,
)
from benchmarks.ppo.workload import (
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
from benchmarks.threefry import uniform

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
    late: bool = False  # the critic runs in the loop of advantages


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

    scalars = ("r",) if form.late else ("r", "value")
    vectors = {k: jnp.zeros((tiles, rows), dtype) for k in scalars}
    vectors["a"], vectors["done"] = (
        jnp.zeros((tiles, rows), jnp.int32),
        jnp.zeros((tiles, rows), bool),
    )
    kept = {k: room(x) for k, x in _kept_widths(form, work).items()} if form.keep else {}
    return vectors | {"o": room(work.features)} | kept


def _nets(form: Form) -> tuple[Net, ...]:
    """What acting runs."""
    return NETS[:1] if form.late else NETS


def _kept_widths(form: Form, work: Work) -> dict[str, int]:
    hidden = {f"{net}{k}": work.width for net in _nets(form) for k in range(1, work.depth + 1)}
    return {"log_p": ACTIONS} | hidden


def _kept(hidden: Mapping[Net, list[Any]], log_p: jax.Array) -> Arrays:
    layers = {f"{net}{k}": h for net, hs in hidden.items() for k, h in enumerate(hs, 1)}
    return {"log_p": log_p} | layers


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
    values: Arrays = {}
    hidden: dict[Net, list[Any]] = {}
    if form.late:
        hidden["actor"], logits = forward_one(form.layout, th, "actor", state.x)
        log_p = log_softmax(form.layout, logits)
    else:
        hidden, log_p, values["value"] = forward(form.layout, th, state.x)
    a = sample(form.layout, log_p, u)
    after, r, done = environment.step(jnp, state, a, form.layout.axis)
    new = {"o": state.x, "a": a, "r": r, "done": done} | values
    new |= _kept(hidden, log_p) if form.keep else {}
    return after, ws | {k: written(form, ws[k], t, x, work.B) for k, x in new.items()}


def learn(form: Form, work: Work, th: Arrays, ws: Arrays, x: jax.Array, part: Part) -> Arrays:
    """The gradient over all stored steps, tile by tile; x is the observation after the last one."""
    rows = ws["a"].shape
    found: Arrays = {}
    read = {k: y for k, y in ws.items() if k not in ("r", "done")}
    if form.late:
        adv, found = critic_backwards(form.layout, th, ws, x, work.B, part.n)
    else:
        flat = {k: ws[k].reshape(work.T, work.B) for k in ("r", "done", "value")}
        after = forward(form.layout, th, x).value
        adv, target = advantages(flat["r"], flat["done"], flat["value"], after, form.unroll)
        read["target"] = target.reshape(rows)
    mean = part.join(adv.sum()) / part.n
    deviation = jnp.sqrt(part.join(((adv - mean) ** 2).sum()) / part.n)
    read["weight"] = ((adv - mean) / (deviation + ADVANTAGE_EPS)).reshape(rows)
    of_tile = of_actor if form.late else of_both

    def tile(z: Any, total: Arrays) -> Arrays:
        now = {k: lax.dynamic_index_in_dim(x, z, 0, keepdims=False) for k, x in read.items()}
        return {k: total[k] + g for k, g in of_tile(form, work, th, now, part.n).items()}

    zeros = {k: jnp.zeros_like(x) for k, x in th.items() if k not in found}
    return part.join(found | lax.fori_loop(0, rows[0], tile, zeros))


def of_both(form: Form, work: Work, th: Arrays, tile: Arrays, count: int) -> Arrays:
    """Gradients of both networks, of one tile."""
    through = _found(tile, work) if form.keep else forward(form.layout, th, tile["o"])
    d = cotangents(form.layout, through, tile["a"], tile["weight"], tile["target"], count)
    return gradient(form.layout, th, tile["o"], through, *d)


def of_actor(form: Form, work: Work, th: Arrays, tile: Arrays, count: int) -> Arrays:
    """The actor's gradient, of one tile."""
    if form.keep:
        hidden, log_p = [tile[f"actor{k}"] for k in range(1, work.depth + 1)], tile["log_p"]
    else:
        hidden, logits = forward_one(form.layout, th, "actor", tile["o"])
        log_p = log_softmax(form.layout, logits)
    d = of_logits(form.layout, log_p, tile["a"], tile["weight"], count)
    return gradient_one(form.layout, th, "actor", tile["o"], hidden, d)


def adam(carried: Carried, gradient: Arrays, i: Any) -> tuple[Carried, jax.Array]:
    """One step, and the gradient's norm before it is held; i counts from 0."""
    theta, m, v, state = carried
    norm = jnp.sqrt(
        sum(((g**2).sum() for g in gradient.values()), jnp.zeros((), carried.m["actor_b1"].dtype))
    )
    scale = jnp.minimum(1.0, NORM / norm)
    n = (i + 1).astype(norm.dtype)
    m = {k: BETA1 * m[k] + (1 - BETA1) * scale * g for k, g in gradient.items()}
    v = {k: BETA2 * v[k] + (1 - BETA2) * (scale * g) ** 2 for k, g in gradient.items()}
    c1, c2 = 1 - BETA1**n, 1 - BETA2**n
    theta = {k: x - LR * (m[k] / c1) / (jnp.sqrt(v[k] / c2) + EPS) for k, x in theta.items()}
    return Carried(theta, m, v, state), norm


def iteration(
    form: Form, work: Work, part: Part, carried: Carried, ws: Arrays, seed: Any, i: Any
) -> tuple[Carried, Arrays, jax.Array, jax.Array]:
    """Acting and learning; also the mean reward and the gradient's norm."""
    th = packed(carried.theta) if form.fused else carried.theta
    b, dtype = part.first + jnp.arange(work.B), carried.m["actor_b1"].dtype

    def draws(t: Any) -> jax.Array:
        return uniform(seed, SAMPLE, i, jnp.expand_dims(b, range(jnp.ndim(t) - 1)), t, dtype)

    table = draws(jnp.arange(work.T)[:, None]) if form.hoisted else None

    def step(t: Any, s: tuple[environment.State, Arrays]) -> Any:
        return act(form, work, th, s[1], s[0], draws(t) if table is None else table[t], t)

    state, ws = lax.fori_loop(0, work.T, step, (carried.state, ws))
    found = unpacked(learn(form, work, th, ws, state.x, part))
    after, norm = adam(carried._replace(state=state), found, i)
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
