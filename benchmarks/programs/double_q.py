"""Double Q-learning with n-step returns: the loss of a batch of rollouts, and its gradient.

van Hasselt, Guez and Silver, 2016, equation 4; Hessel et al., Rainbow, 2018, section 3.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 64, "T": 80, "F": 16, "A": 4}
SMALL = {"B": 2, "T": 8, "F": 3, "A": 2}
GAMMA, N = 0.99, 5


def inputs(rng, B, T, F, A):
    return {
        "o": rng.standard_normal((B, T, F), "f4"),
        "a": rng.integers(0, A, (B, T), "i4"),
        "r": rng.standard_normal((B, T), "f4"),
        "W": rng.standard_normal((F, A), "f4"),
        "target_W": rng.standard_normal((F, A), "f4"),
    }


def recurra_program(backend, B, T, F, A):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        o, a, r = rc.input(rc.f32[F], (b, t)), rc.input(rc.i32, (b, t)), rc.input(rc.f32, (b, t))
        W, target_W = rc.input(rc.f32[F, A]), rc.input(rc.f32[F, A])
        q, target_q = o @ W, o @ target_W
        later = target_q.take(q.argmax())  # chosen by one network, judged by the other
        goal = r[b, t : t + N].discounted_sum(GAMMA) + GAMMA**N * later[b, t + N]
        error = q.take(a) - goal.detach()
        loss = 0.5 * error[0:rows, 0 : steps - N].square().mean()
        loss.backward(wrt=[W])
        rc.output(loss=loss, d_W=W.grad)
    return ctx.compile({rows: B, steps: T}, backend=backend)


def by_hand(B, T, F, A):
    def loss(W, target_W, o, a, r):
        q = o @ W
        later = jnp.take_along_axis(o @ target_W, q.argmax(-1)[..., None], -1)[..., 0]
        returns = sum(GAMMA**k * r[:, k : T - N + k] for k in range(N))
        goal = jax.lax.stop_gradient(returns + GAMMA**N * later[:, N:])
        taken = jnp.take_along_axis(q, a[..., None], -1)[..., 0]
        return 0.5 * jnp.square(taken[:, : T - N] - goal).mean()

    @jax.jit
    def value_and_gradient(o, a, r, W, target_W):
        value, d_W = jax.value_and_grad(loss)(W, target_W, o, a, r)
        return {"loss": value, "d_W": d_W}

    return value_and_gradient
