"""A GRU decoder that attends over the memory of an encoder, and the gradient of its weights.

Bahdanau, Cho and Bengio, Neural Machine Translation by Jointly Learning to Align and Translate,
2015, section 3 and appendix A.1.2, A.2.2; the encoder's memory and the words so far are given.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 8, "S": 16, "T": 16, "X": 16, "H": 32, "V": 40}
SMALL = {"B": 2, "S": 3, "T": 4, "X": 2, "H": 3, "V": 5}
NAMES = ("Wa", "Ua", "va", "Wz", "Wr", "W", "Uz", "Ur", "U", "Wo")


def inputs(rng, B, S, T, X, H, V):
    def weight(m, n):
        return rng.standard_normal((m, n), "f4") / np.float32(m**0.5)

    return {
        "memory": rng.standard_normal((B, S, H), "f4"),
        "word": rng.standard_normal((B, T, X), "f4"),
        "label": rng.integers(0, V, (B, T), "i4"),
        "Wa": weight(H, H),
        "Ua": weight(H, H),
        "va": weight(H, 1)[:, 0],
        "Wz": weight(X + H, H),
        "Wr": weight(X + H, H),
        "W": weight(X + H, H),
        "Uz": weight(H, H),
        "Ur": weight(H, H),
        "U": weight(H, H),
        "Wo": weight(H + H, V),
    }


def recurra_program(backend, B, S, T, X, H, V):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, rows), (s, places), (t, steps)):
        memory, word = rc.input(rc.f32[H], (b, s)), rc.input(rc.f32[X], (b, t))
        label = rc.input(rc.i32, (b, t))
        Wa, Ua, va = rc.input(rc.f32[H, H]), rc.input(rc.f32[H, H]), rc.input(rc.f32[H])
        Wz, Wr, W = (rc.input(rc.f32[X + H, H], name=n) for n in ("Wz", "Wr", "W"))
        Uz, Ur, U = (rc.input(rc.f32[H, H], name=n) for n in ("Uz", "Ur", "U"))
        Wo = rc.input(rc.f32[2 * H, V])

        h, before = rc.like(rc.f32[H], (b, t)), rc.like(rc.f32[H], (b, t))
        before[b, 0] = 0.0
        before[b, t] = h[b, t - 1]
        energy = (before @ Wa + memory @ Ua).tanh() @ va
        weights = energy[b, 0:places, t].softmax()
        context = weights @ memory[b, 0:places]
        x = rc.concat([word, context])
        z = (x @ Wz + before @ Uz).sigmoid()
        r = (x @ Wr + before @ Ur).sigmoid()
        new = (x @ W + (r * before) @ U).tanh()
        h[b, t] = (1.0 - z) * before + z * new
        log_p = (rc.concat([h, context]) @ Wo).log_softmax()
        loss = -log_p[b, t][label][0:rows, 0:steps].mean()
        wrt = [Wa, Ua, va, Wz, Wr, W, Uz, Ur, U, Wo]
        loss.backward(wrt=wrt)
        rc.output(loss=loss, **{"d_" + n: w.grad for n, w in zip(NAMES, wrt, strict=True)})
    return ctx.compile({rows: B, places: S, steps: T}, backend=backend)


def by_hand(B, S, T, X, H, V):
    """What does not wait for the state, and the words' probabilities, are outside of the scan."""

    def loss(w, memory, word, label):
        keys = memory @ w["Ua"]  # [B, S, H]
        into = jnp.concatenate([w["Wz"], w["Wr"], w["W"]], axis=1)
        given = jnp.swapaxes(word, 0, 1) @ into[:X]
        gates = jnp.concatenate([w["Wa"], w["Uz"], w["Ur"]], axis=1)

        def step(h, given):
            of_h = h @ gates
            weights = jax.nn.softmax(jnp.tanh(of_h[:, None, :H] + keys) @ w["va"])
            context = jnp.einsum("bs,bsh->bh", weights, memory)
            of_x = given + context @ into[X:]
            z, r = jnp.split(jax.nn.sigmoid(of_x[:, : 2 * H] + of_h[:, H:]), 2, axis=1)
            new = jnp.tanh(of_x[:, 2 * H :] + (r * h) @ w["U"])
            h = (1.0 - z) * h + z * new
            return h, (h, context)

        _, (h, context) = jax.lax.scan(step, jnp.zeros((B, H)), given)
        log_p = jax.nn.log_softmax(jnp.concatenate([h, context], axis=-1) @ w["Wo"])
        return -jnp.take_along_axis(log_p, label.T[..., None], axis=-1).mean()

    @jax.jit
    def value_and_gradient(memory, word, label, **w):
        value, slopes = jax.value_and_grad(loss)(w, memory, word, label)
        return {"loss": value, **{"d_" + n: g for n, g in slopes.items()}}

    return value_and_gradient
