"""Beam search over a recurrent language model, with the best sequence read backwards.

Sutskever, Vinyals and Le, Sequence to Sequence Learning with Neural Networks, 2014, section 3.2.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 4, "T": 24, "K": 4, "V": 64, "H": 32}
SMALL = {"B": 2, "T": 4, "K": 2, "V": 5, "H": 3}


def inputs(rng, B, T, K, V, H):
    return {
        "embed": rng.standard_normal((V, H), "f4"),
        "U": rng.standard_normal((H, H), "f4") / H**0.5,
        "O": rng.standard_normal((H, V), "f4"),
        "first": rng.standard_normal((B, H), "f4"),
    }


def recurra_program(backend, B, T, K, V, H):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        embed, U, O = rc.input(rc.f32[V, H]), rc.input(rc.f32[H, H]), rc.input(rc.f32[H, V])
        first = rc.input(rc.f32[H], (b,))
        h = rc.like(rc.f32[K, H], (b, t))
        score = rc.like(rc.f32[K], (b, t))
        parent, token = rc.like(rc.i32[K], (b, t)), rc.like(rc.i32[K], (b, t))

        # one hypothesis at first: the others start so low that they are never taken
        before = rc.like(rc.f32[K], (b, t))
        before[b, 0] = rc.where(rc.arange(K) == 0, 0.0, -1e9)
        before[b, t] = score[b, t - 1]
        h[b, 0] = first.broadcast_to((K, H))
        h[b, t] = (embed.take(token[b, t - 1]) + h[b, t - 1].take(parent[b, t - 1]) @ U).tanh()
        total = before.reshape(K, 1) + (h @ O).log_softmax()
        best, where = total.reshape(K * V).topk(K)
        score[b, t], parent[b, t], token[b, t] = best, where // V, where % V

        at = rc.like(rc.i32, (b, t))  # which hypothesis of step t the best sequence goes through
        at[b, steps - 1] = 0
        at[b, t] = parent[b, t + 1].take(at[b, t + 1])
        rc.output(score=score[b, steps - 1], sequence=token.take(at))
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, K, V, H):
    @jax.jit
    def search(embed, U, O, first):
        def step(carry, _):
            h, before = carry
            total = before[:, :, None] + jax.nn.log_softmax(h @ O)
            score, where = jax.lax.top_k(total.reshape(B, K * V), K)
            parent, token = where // V, where % V
            h = jnp.tanh(embed[token] + jnp.take_along_axis(h, parent[:, :, None], axis=1) @ U)
            return (h, score), (parent, token)

        def back(at, now):
            parent, token = now
            chosen = jnp.take_along_axis(token, at[:, None], axis=1)[:, 0]
            return jnp.take_along_axis(parent, at[:, None], axis=1)[:, 0], chosen

        h = jnp.broadcast_to(first[:, None], (B, K, H))
        before = jnp.broadcast_to(jnp.where(jnp.arange(K) == 0, 0.0, -1e9), (B, K))
        (_, score), found = jax.lax.scan(step, (h, before), length=T)
        _, sequence = jax.lax.scan(back, jnp.zeros(B, "i4"), found, reverse=True)
        return {"score": score, "sequence": sequence.T}

    return search
