"""Decoders in JAX as they are written by hand: caches of T positions, padded and masked.

One jitted program for several tokens, layers unrolled, caches donated, weights packed as ours are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from benchmarks.decode.workload import LAUNCH, STEPS, Work
from benchmarks.harness import Contestant

LAYOUTS = {  # of a cache: its axes, and the product with queries
    "[B,T,KV,HD]": ("btkd", 1),
    "[B,KV,T,HD]": ("bktd", 2),
}
MASKED = -1e30


def rms(work: Work, x: Any, w: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + work.config.eps) * w


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """[.., HD] by angles [.., HD / 2]."""
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def heads(work: Work, w: Any, l: int, x: Any, cos: Any, sin: Any) -> tuple[Any, Any, Any]:
    """q [B, S, KV, G, HD], k and v [B, S, KV, HD] of x [B, S, D]; angles [S, HD / 2]."""
    y = rms(work, x, w["ln1"][l]) @ w["qkv"][l]
    q, k, v = jnp.split(y, [work.H * work.HD, (work.H + work.KV) * work.HD], -1)
    shape = (*x.shape[:2], -1, work.HD)
    cos, sin = cos[:, None], sin[:, None]
    q, k = turned(q.reshape(shape), cos, sin), turned(k.reshape(shape), cos, sin)
    q = q.reshape(*x.shape[:2], work.KV, work.groups, work.HD) * work.HD**-0.5
    return q, k, v.reshape(shape)


def rest(work: Work, w: Any, l: int, x: Any, other: Any) -> Any:
    """The projection of heads o, and the MLP."""
    x = x + other.reshape(*x.shape[:2], -1) @ w["o"][l]
    gate, up = jnp.split(rms(work, x, w["ln2"][l]) @ w["gate_up"][l], 2, -1)
    return x + (jax.nn.silu(gate) * up) @ w["down"][l]


def seen(work: Work, at: Any, count: int) -> Any:
    """Which of n positions `at` attends to."""
    place = jnp.arange(count)
    return (place <= at) & ((place > at - work.window) if work.window else True)


def weighed(scores: Any, mask: Any) -> Any:
    return jax.nn.softmax(jnp.where(mask, scores, MASKED), -1)


def head(work: Work, w: Any, x: Any) -> tuple[Any, Any]:
    """The likeliest token and its log-probability, of x [B, D]."""
    logits = jax.nn.log_softmax(rms(work, x, w["norm"]) @ w["emb"].T)
    token = jnp.argmax(logits, -1).astype(jnp.int32)
    return token, jnp.take_along_axis(logits, token[:, None], -1)[:, 0]


def prompted(work: Work, w: Any, tokens: Any, turns: Any) -> list[tuple[Any, Any]]:
    """k and v [B, P, KV, HD] of every layer, for a whole prompt at once."""
    P = tokens.shape[1]
    x, out = w["emb"][tokens], list[tuple[Any, Any]]()
    cos, sin = (a[:P] for a in turns)
    mask = seen(work, jnp.arange(P)[:, None], P)
    for l in range(work.L):
        q, k, v = heads(work, w, l, x, cos, sin)
        out.append((k, v))
        p = weighed(jnp.einsum("bskgd,btkd->bkgst", q, k), mask)
        x = rest(work, w, l, x, jnp.einsum("bkgst,btkd->bskgd", p, v))
    return out


def several(
    work: Work, axes: str, count: int, w: Any, turns: Any, caches: Any, token: Any, t0: Any
) -> Any:
    """n tokens from position t0 on."""
    at = axes.index("t")
    scores, values = f"bkgd,{axes}->bkgt", f"bkgt,{axes}->bkgd"

    def step(i: Any, state: Any) -> Any:
        caches, token, made, logp = state
        t = t0 + i
        x, new = w["emb"][token][:, None], list[Any]()
        cos, sin = (lax.dynamic_slice_in_dim(a, t, 1) for a in turns)
        for l in range(work.L):
            q, k, v = heads(work, w, l, x, cos, sin)
            pair = [
                lax.dynamic_update_slice_in_dim(c, y if axes == "btkd" else y.swapaxes(1, 2), t, at)
                for c, y in zip(caches[l], (k, v), strict=True)
            ]
            p = weighed(jnp.einsum(scores, q[:, 0], pair[0]), seen(work, t, work.T))
            x = rest(work, w, l, x, jnp.einsum(values, p, pair[1])[:, None])
            new.append(tuple(pair))
        token, lp = head(work, w, x[:, 0])
        return new, token, made.at[:, i].set(token), logp.at[:, i].set(lp)

    empty = jnp.zeros((work.B, count), jnp.int32), jnp.zeros((work.B, count))
    return lax.fori_loop(0, count, step, (caches, token, *empty))


def padded(work: Work, layout: str) -> Contestant:
    """A decoder whose caches lie as said."""
    axes, at = LAYOUTS[layout]
    w = {name: jnp.asarray(x) for name, x in work.weights.items()}
    turns = tuple(map(jnp.asarray, work.turns))
    launch = jax.jit(partial(several, work, axes, LAUNCH), donate_argnums=(2,))
    fill = jax.jit(partial(prompted, work))
    state: Any = None

    def begin() -> Any:
        last = work.prompt - 1
        rows = [jnp.asarray(x[None]) for x in work.tokens[:, :last]]  # all at once would not fit
        alone = [fill(w, row, turns) for row in rows]
        pairs = jax.tree.map(lambda *x: jnp.concatenate(x), *alone)
        caches: list[Any] = []
        for pair in pairs:
            pair = [x if at == 1 else x.swapaxes(1, 2) for x in pair]
            room = [(0, work.T - last) if k == at else (0, 0) for k in range(4)]
            caches.append(tuple(jnp.pad(x, room) for x in pair))
        return caches, jnp.asarray(work.tokens[:, last]), last

    def more(state: Any) -> tuple[Any, Any, Any]:
        caches, token, t = state
        caches, token, made, logp = launch(w, turns, caches, token, jnp.int32(t))
        return (caches, token, t + LAUNCH), np.asarray(made), np.asarray(logp)

    def run(index: int) -> None:
        nonlocal state
        state = begin() if state is None else state
        for _ in range(-(-index // LAUNCH)):
            state, *_ = more(state)

    def answer() -> Mapping[str, NDArray[Any]]:
        own, tokens, logp = begin(), list[Any](), list[Any]()
        for _ in range(STEPS // LAUNCH):
            own, made, found = more(own)
            tokens.append(made)
            logp.append(found)
        return {"tokens": np.concatenate(tokens, 1), "logprob": np.concatenate(logp, 1)}

    return Contestant(f"JAX padded {layout}", run, answer)
