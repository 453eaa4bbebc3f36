"""Model-agnostic meta-learning: the loss after steps on each task, and its gradient through them.

Finn, Abbeel and Levine, 2017, algorithm 2, for the sine waves of section 5.1.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 16, "K": 5, "S": 10, "H": 40}
SMALL = {"B": 2, "K": 2, "S": 3, "H": 4}
RATE = 0.01


def inputs(rng, B, K, S, H):
    shapes = {"x": (B, S), "y": (B, S), "query_x": (B, S), "query_y": (B, S)}
    shapes |= {"W1": (1, H), "c1": (H,), "W2": (H, 1), "c2": (1,)}
    return {name: rng.standard_normal(shape, "f4") for name, shape in shapes.items()}


def recurra_program(backend, B, K, S, H):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, tasks), (k, steps)):
        x, y, query_x, query_y = (
            rc.input(rc.f32[S], (b,), name=name) for name in ("x", "y", "query_x", "query_y")
        )
        W1, c1, W2, c2 = (
            rc.input(rc.f32[shape], name=name)
            for name, shape in {"W1": (1, H), "c1": (H,), "W2": (H, 1), "c2": (1,)}.items()
        )
        start = [W1, c1, W2, c2]
        fast = [rc.like(p.type, (b, k)) for p in start]
        for f, p in zip(fast, start, strict=True):
            f[b, 0] = p

        def loss(x, y, W1, c1, W2, c2):
            h = (x.reshape(S, 1) @ W1 + c1).tanh()
            return ((h @ W2 + c2).reshape(S) - y).square().mean()

        loss(x, y, *fast).backward(wrt=fast)
        for f in fast:
            f[b, k + 1] = f - RATE * f.grad
        after = loss(query_x, query_y, *(f[b, steps - 1] for f in fast))
        meta = after[0:tasks].mean()
        meta.backward(wrt=start)
        rc.output(loss=meta, d_W1=W1.grad, d_c1=c1.grad, d_W2=W2.grad, d_c2=c2.grad)
    return ctx.compile({tasks: B, steps: K + 1}, backend=backend)


def by_hand(B, K, S, H):
    def loss(parameters, x, y):
        W1, c1, W2, c2 = parameters
        h = jnp.tanh(x[:, None] @ W1 + c1)
        return jnp.square((h @ W2 + c2)[:, 0] - y).mean()

    def adapted(parameters, x, y, query_x, query_y):
        for _ in range(K):
            slopes = jax.grad(loss)(parameters, x, y)
            parameters = [p - RATE * g for p, g in zip(parameters, slopes, strict=True)]
        return loss(parameters, query_x, query_y)

    def meta(parameters, *tasks):
        return jax.vmap(adapted, (None, 0, 0, 0, 0))(parameters, *tasks).mean()

    @jax.jit
    def value_and_gradient(x, y, query_x, query_y, W1, c1, W2, c2):
        parameters = [W1, c1, W2, c2]
        value, slopes = jax.value_and_grad(meta)(parameters, x, y, query_x, query_y)
        return dict(zip(("loss", "d_W1", "d_c1", "d_W2", "d_c2"), (value, *slopes), strict=True))

    return value_and_gradient
