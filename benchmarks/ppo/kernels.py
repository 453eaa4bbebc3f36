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

from benchmarks.ppo.workload import ACTIONS, ENTROPY, GAMMA, LAMBDA, NETS, VALUE, Net

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
        hidden[net], head = _after_first(layout, th, net, h)
        heads.append(head)
    logits, value = heads
    return Through(hidden, log_softmax(layout, logits), value.squeeze(layout.axis))


def forward_one(layout: Layout, th: Arrays, net: Net, x: jax.Array) -> tuple[list[Any], jax.Array]:
    """Hidden layers and the head of one network; th not packed."""
    h = jnp.tanh(layout.linear(x, th[f"{net}_W1"], th[f"{net}_b1"]))
    return _after_first(layout, th, net, h)


def _after_first(layout: Layout, th: Arrays, net: Net, h: jax.Array) -> tuple[list[Any], jax.Array]:
    hidden, k = [h], 2
    while f"{net}_W{k + 1}" in th:
        h = jnp.tanh(layout.linear(h, th[f"{net}_W{k}"], th[f"{net}_b{k}"]))
        hidden.append(h)
        k += 1
    return hidden, layout.linear(h, th[f"{net}_W{k}"], th[f"{net}_b{k}"])


def log_softmax(layout: Layout, logits: jax.Array) -> jax.Array:
    """ln p of each action."""
    top = logits.max(layout.axis, keepdims=True)
    total = jnp.exp(logits - top).sum(layout.axis, keepdims=True)
    return logits - top - jnp.log(total)


def sample(layout: Layout, log_p: jax.Array, u: jax.Array) -> jax.Array:
    """Actions by the inverse of the distribution function; one number u in [0, 1) for each."""
    p = jnp.unstack(jnp.exp(log_p), axis=layout.axis)
    a, below = jnp.zeros(u.shape, jnp.int32), jnp.zeros_like(u)
    for k in range(ACTIONS - 1):
        below = below + p[k]
        a = a + (below < u).astype(jnp.int32)
    return a


def cotangents(
    layout: Layout, through: Through, a: jax.Array, adv: jax.Array, target: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """d loss / d logits, d loss / d value where ratios are 1; `adv` normalized, n rows in all."""
    d_value = VALUE * jnp.expand_dims(through.value - target, layout.axis)
    return of_logits(layout, through.log_p, a, adv, count), d_value / count


def of_logits(
    layout: Layout, log_p: jax.Array, a: jax.Array, adv: jax.Array, count: int
) -> jax.Array:
    """d loss / d logits, as in `cotangents`."""
    p = jnp.exp(log_p)
    actions = jnp.expand_dims(jnp.arange(ACTIONS), 1 if layout.axis == 0 else 0)
    chosen = (jnp.expand_dims(a, layout.axis) == actions).astype(p.dtype)
    entropy = -(p * log_p).sum(layout.axis, keepdims=True)
    weight = jnp.expand_dims(adv, layout.axis)
    return (weight * (p - chosen) + ENTROPY * p * (log_p + entropy)) / count


def gradient(
    layout: Layout, th: Arrays, x: jax.Array, through: Through, d_logits: Any, d_value: Any
) -> Arrays:
    """Gradients of `th`, packed or not, summed over the rows of a tile."""
    found: Arrays = {}
    firsts: list[jax.Array] = []
    for net, d in zip(NETS, (d_logits, d_value), strict=True):
        of_net, first = _down_to_first(layout, th, net, through.hidden[net], d)
        found |= of_net
        firsts.append(first)
    if "W1" in th:
        firsts, names = [jnp.concatenate(firsts, layout.axis)], [""]
    else:
        names = [f"{net}_" for net in NETS]
    for name, d in zip(names, firsts, strict=True):
        found[f"{name}W1"], found[f"{name}b1"] = layout.outer(x, d), d.sum(_rows(layout))
    return found


def gradient_one(
    layout: Layout, th: Arrays, net: Net, x: jax.Array, hidden: list[Any], d: jax.Array
) -> Arrays:
    """Gradients of one network, summed over the rows of a tile; d is the cotangent of its head."""
    found, first = _down_to_first(layout, th, net, hidden, d)
    outer = layout.outer(x, first)
    return found | {f"{net}_W1": outer, f"{net}_b1": first.sum(_rows(layout))}


def _down_to_first(
    layout: Layout, th: Arrays, net: Net, hidden: list[Any], d: jax.Array
) -> tuple[Arrays, jax.Array]:
    found: Arrays = {}
    for k, h in reversed(list(enumerate(hidden, 2))):
        found[f"{net}_W{k}"], found[f"{net}_b{k}"] = layout.outer(h, d), d.sum(_rows(layout))
        d = layout.back(d, th[f"{net}_W{k}"]) * (1 - h * h)
    return found, d


def _rows(layout: Layout) -> int:
    return 1 if layout.axis == 0 else 0


def advantages(
    r: jax.Array, done: jax.Array, value: jax.Array, after: jax.Array, unroll: int
) -> tuple[jax.Array, jax.Array]:
    """Generalized advantages and the critic's targets, [T, B]; `after` [B] is the value at T."""

    def back(c: tuple[jax.Array, jax.Array], now: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        following, after = c
        r, done, value = now
        on = 1.0 - done.astype(r.dtype)
        following = r + GAMMA * on * after - value + GAMMA * LAMBDA * on * following
        return (following, value), following

    first = (jnp.zeros_like(after), after)
    _, adv = lax.scan(back, first, (r, done, value), reverse=True, unroll=unroll)
    return adv, adv + value


def critic_backwards(
    layout: Layout, th: Arrays, ws: Arrays, x: jax.Array, B: int, count: int
) -> tuple[jax.Array, Arrays]:
    """Advantages [tiles, rows] and the critic's gradient, in one loop over tiles backwards.

    Stores o, r, done as acting left them; x is the observation after the last step. Values are
    those of the critic that learns, so that its slope v - R is -A.
    """
    tiles, rows = ws["r"].shape

    def tile(k: Any, c: tuple[Any, ...]) -> tuple[Any, ...]:
        total, adv, following, after = c
        z = tiles - 1 - k
        o, r, done = (
            lax.dynamic_index_in_dim(ws[name], z, 0, keepdims=False) for name in ("o", "r", "done")
        )
        hidden, head = forward_one(layout, th, "critic", o)
        r, on, v = (y.reshape(rows // B, B) for y in (r, 1.0 - done, head.squeeze(layout.axis)))
        found: list[jax.Array] = []
        for t in reversed(range(rows // B)):
            delta = r[t] + GAMMA * on[t] * after - v[t]
            following = delta + GAMMA * LAMBDA * on[t] * following
            found.append(following)
            after = v[t]
        now = jnp.concatenate(found[::-1])
        d = jnp.expand_dims(-VALUE * now / count, layout.axis)
        more = gradient_one(layout, th, "critic", o, hidden, d)
        total = {name: total[name] + g for name, g in more.items()}
        adv = lax.dynamic_update_index_in_dim(adv, now, z, 0)
        return total, adv, following, after

    after = forward_one(layout, th, "critic", x)[1].squeeze(layout.axis)
    zeros = {name: jnp.zeros_like(y) for name, y in th.items() if name.startswith("critic_")}
    start = (zeros, jnp.zeros_like(ws["r"]), jnp.zeros_like(after), after)
    total, adv, *_ = lax.fori_loop(0, tiles, tile, start)
    return adv, total
