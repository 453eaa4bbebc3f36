"""The two networks, their losses' cotangents and their gradients by hand, in either layout.

Batch first, [rows, features], is how one writes it; batch last, [features, columns], lets small
products run along the batch. In the first epoch the policy that learns is the one that acted: every
ratio is 1, no clip binds, and the losses' slopes are -A and v - R.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from recurra.bench.ppo.work import ACTIONS, ENTROPY, GAMMA, LAMBDA, NETS, VALUE, Net

Arrays = dict[str, jax.Array]


class Layout(NamedTuple):
    """Where features lie, and the products of a layer there: W [inputs, outputs], b [outputs]."""

    axis: int
    linear: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]  # x, W, b → outputs
    back: Callable[[jax.Array, jax.Array], jax.Array]  # d outputs, W → d inputs
    outer: Callable[[jax.Array, jax.Array], jax.Array]  # x, d outputs → d W


BATCH_FIRST = Layout(-1, lambda x, W, b: x @ W + b, lambda d, W: d @ W.T, lambda x, d: x.T @ d)
BATCH_LAST = Layout(
    0, lambda x, W, b: W.T @ x + b[:, None], lambda d, W: W @ d, lambda x, d: x @ d.T
)


class Through(NamedTuple):
    """What a forward pass leaves: hidden layers of both nets, ln p of the actions, values."""

    hidden: dict[Net, list[jax.Array]]
    log_p: jax.Array
    value: jax.Array


def packed(theta: Arrays) -> Arrays:
    """Parameters with the first layers of both networks side by side."""
    first = {f"{c}1": [theta[f"{net}_{c}1"] for net in NETS] for c in "Wb"}
    rest = {k: x for k, x in theta.items() if k[-2:] not in ("W1", "b1")}
    return rest | {k: jnp.concatenate(xs, -1) for k, xs in first.items()}


def unpacked(th: Arrays) -> Arrays:
    """The inverse of `packed`, also for gradients; what is not packed stays."""
    if "W1" not in th:
        return th
    halves = {
        f"{net}_{c}1": x
        for c in "Wb"
        for net, x in zip(NETS, jnp.split(th[f"{c}1"], 2, -1), strict=True)
    }
    return {k: x for k, x in th.items() if k not in ("W1", "b1")} | halves


def forward(layout: Layout, th: Arrays, x: jax.Array) -> Through:
    """One pass of both networks over x, rows or columns of observations; th packed or not."""
    if "W1" in th:
        shared = jnp.tanh(layout.linear(x, th["W1"], th["b1"]))
        firsts = jnp.split(shared, 2, layout.axis)
    else:
        firsts = [jnp.tanh(layout.linear(x, th[f"{n}_W1"], th[f"{n}_b1"])) for n in NETS]
    hidden: dict[Net, list[jax.Array]] = {}
    heads: list[jax.Array] = []
    for net, h in zip(NETS, firsts, strict=True):
        hidden[net], k = [h], 2
        while f"{net}_W{k + 1}" in th:
            h = jnp.tanh(layout.linear(h, th[f"{net}_W{k}"], th[f"{net}_b{k}"]))
            hidden[net].append(h)
            k += 1
        heads.append(layout.linear(h, th[f"{net}_W{k}"], th[f"{net}_b{k}"]))
    logits, value = heads
    top = logits.max(layout.axis, keepdims=True)
    total = jnp.exp(logits - top).sum(layout.axis, keepdims=True)
    return Through(hidden, logits - top - jnp.log(total), value.squeeze(layout.axis))


def sample(layout: Layout, log_p: jax.Array, u: jax.Array) -> jax.Array:
    """Actions by the inverse of the distribution function; one number u in [0, 1) for each."""
    p = jnp.unstack(jnp.exp(log_p), axis=layout.axis)
    a, below = jnp.zeros(u.shape, jnp.int32), jnp.zeros_like(u)
    for k in range(ACTIONS - 1):
        below = below + p[k]
        a = a + (below < u).astype(jnp.int32)
    return a


def cotangents(
    layout: Layout, through: Through, a: jax.Array, adv: jax.Array, target: jax.Array, n: int
) -> tuple[jax.Array, jax.Array]:
    """d loss / d logits, d loss / d value where ratios are 1; `adv` normalised, n rows in all."""
    log_p, p = through.log_p, jnp.exp(through.log_p)
    actions = jnp.expand_dims(jnp.arange(ACTIONS), 1 if layout.axis == 0 else 0)
    chosen = (jnp.expand_dims(a, layout.axis) == actions).astype(p.dtype)
    entropy = -(p * log_p).sum(layout.axis, keepdims=True)
    weight = jnp.expand_dims(adv, layout.axis)
    d_logits = weight * (p - chosen) + ENTROPY * p * (log_p + entropy)
    d_value = VALUE * jnp.expand_dims(through.value - target, layout.axis)
    return d_logits / n, d_value / n


def gradient(
    layout: Layout, th: Arrays, x: jax.Array, through: Through, d_logits: Any, d_value: Any
) -> Arrays:
    """Gradients of `th`, packed or not, summed over the rows of a tile."""
    found: Arrays = {}
    rows = 1 if layout.axis == 0 else 0
    firsts: list[jax.Array] = []
    for net, d in zip(NETS, (d_logits, d_value), strict=True):
        for k, h in reversed(list(enumerate(through.hidden[net], 2))):
            found[f"{net}_W{k}"], found[f"{net}_b{k}"] = layout.outer(h, d), d.sum(rows)
            d = layout.back(d, th[f"{net}_W{k}"]) * (1 - h * h)
        firsts.append(d)
    if "W1" in th:
        firsts, names = [jnp.concatenate(firsts, layout.axis)], [""]
    else:
        names = [f"{net}_" for net in NETS]
    for name, d in zip(names, firsts, strict=True):
        found[f"{name}W1"], found[f"{name}b1"] = layout.outer(x, d), d.sum(rows)
    return found


def advantages(
    r: jax.Array, done: jax.Array, value: jax.Array, after: jax.Array, unroll: int
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantages and the critic's targets, [T, B]; `after` [B] is the value at T."""

    def back(c: tuple[jax.Array, jax.Array], now: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        following, after = c
        r, done, value = now
        on = 1.0 - done.astype(r.dtype)
        following = r + GAMMA * on * after - value + GAMMA * LAMBDA * on * following
        return (following, value), following

    first = (jnp.zeros_like(after), after)
    _, adv = lax.scan(back, first, (r, done, value), reverse=True, unroll=unroll)
    return adv, adv + value
