"""The loss of connectionist temporal classification: all alignments of a label are summed.

Graves et al., 2006, equations 6 to 8, in logarithms.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"B": 16, "T": 100, "L": 15, "V": 32}
SMALL = {"B": 2, "T": 7, "L": 2, "V": 4}
NEVER = -1e30


def inputs(rng, B, T, L, V):
    labels = rng.integers(1, V, (B, L), "i4")
    spaced = np.zeros((B, 2 * L + 1), "i4")  # a blank, 0, between and around them
    spaced[:, 1::2] = labels
    return {"logits": rng.standard_normal((B, T, V), "f4"), "label": spaced}


def recurra_program(backend, B, T, L, V):
    def log_add(*xs):
        return rc.stack(xs).logsumexp(axis=0)

    ctx = rc.Context(num_dims=3)
    with ctx as ((b, rows), (t, steps), (s, places)):
        logits, label = rc.input(rc.f32[V], (b, t)), rc.input(rc.i32, (b, s))
        emit = logits.log_softmax().take(label)
        alpha = rc.like(rc.f32, (b, t, s))
        alpha[b, 0, 0] = emit
        alpha[b, 0, 1] = emit
        alpha[b, 0, s] = NEVER
        alpha[b, t, 0] = alpha[b, t - 1, 0] + emit
        alpha[b, t, 1] = log_add(alpha[b, t - 1, 1], alpha[b, t - 1, 0]) + emit
        may_skip = (label != 0) & (label != label[b, s - 2])
        skip = rc.where(may_skip, alpha[b, t - 1, s - 2], NEVER)
        alpha[b, t, s] = log_add(alpha[b, t - 1, s], alpha[b, t - 1, s - 1], skip) + emit
        last = steps - 1
        rc.output(loss=-log_add(alpha[b, last, places - 1], alpha[b, last, places - 2]))
    return ctx.compile({rows: B, steps: T, places: 2 * L + 1}, backend=backend)


def by_hand(B, T, L, V):
    places = 2 * L + 1

    @jax.jit
    def loss(logits, label):
        index = jnp.broadcast_to(label[:, None], (B, T, places))
        emit = jnp.take_along_axis(jax.nn.log_softmax(logits), index, axis=2)
        may_skip = (label != 0) & (label != jnp.roll(label, 2, axis=1))
        may_skip = may_skip.at[:, :2].set(False)

        def shifted(x, k):
            return jnp.pad(x[:, :-k], ((0, 0), (k, 0)), constant_values=NEVER)

        def step(alpha, emit):
            skip = jnp.where(may_skip, shifted(alpha, 2), NEVER)
            ways = jnp.stack([alpha, shifted(alpha, 1), skip])
            return jax.nn.logsumexp(ways, axis=0) + emit, None

        first = jnp.where(jnp.arange(places) < 2, emit[:, 0], NEVER)
        alpha, _ = jax.lax.scan(step, first, jnp.swapaxes(emit, 0, 1)[1:])
        return {"loss": -jnp.logaddexp(alpha[:, -1], alpha[:, -2])}

    return loss
