"""The likelihood of a hidden Markov model by the forward algorithm, and its gradient.

Rabiner, A Tutorial on Hidden Markov Models, 1989, equations 18 to 21, in logarithms.
"""

import jax

import recurra as rc

SIZES = {"B": 8, "T": 128, "S": 16, "V": 24}
SMALL = {"B": 2, "T": 4, "S": 3, "V": 4}


def inputs(rng, B, T, S, V):
    return {
        "seen": rng.integers(0, V, (B, T), "i4"),
        "start": rng.standard_normal(S, "f4"),
        "move": rng.standard_normal((S, S), "f4"),
        "emit": rng.standard_normal((S, V), "f4"),
    }


def recurra_program(backend, B, T, S, V):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        seen = rc.input(rc.i32, (b, t))
        start, move, emit = rc.input(rc.f32[S]), rc.input(rc.f32[S, S]), rc.input(rc.f32[S, V])
        log_emit = emit.log_softmax().take(seen, axis=1)
        alpha = rc.like(rc.f32[S], (b, t))
        alpha[b, 0] = start.log_softmax() + log_emit
        moved = alpha[b, t - 1].reshape(S, 1) + move.log_softmax()
        alpha[b, t] = moved.logsumexp(axis=0) + log_emit
        loss = -alpha[b, steps - 1].logsumexp()[0:rows].mean()
        loss.backward(wrt=[start, move, emit])
        rc.output(loss=loss, d_start=start.grad, d_move=move.grad, d_emit=emit.grad)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, S, V):
    def loss(parameters, seen):
        start, move, emit = (jax.nn.log_softmax(x) for x in parameters)
        table = emit.T[seen.T]

        def step(alpha, emit):
            return jax.nn.logsumexp(alpha[:, :, None] + move, axis=1) + emit, None

        alpha, _ = jax.lax.scan(step, start + table[0], table[1:])
        return -jax.nn.logsumexp(alpha, axis=1).mean()

    @jax.jit
    def value_and_gradient(seen, start, move, emit):
        value, slopes = jax.value_and_grad(loss)((start, move, emit), seen)
        return dict(zip(("loss", "d_start", "d_move", "d_emit"), (value, *slopes), strict=True))

    return value_and_gradient
