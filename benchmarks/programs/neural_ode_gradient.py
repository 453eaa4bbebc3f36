"""A neural ODE, solved by Runge and Kutta's method of order 4, and its gradient.

Chen et al., Neural Ordinary Differential Equations, 2018, section 3; the steps are differentiated.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"B": 32, "T": 40, "D": 4, "H": 32}
SMALL = {"B": 2, "T": 3, "D": 2, "H": 3}
DT = 0.05


def inputs(rng, B, T, D, H):
    shapes = {"x": (B, D), "y": (B, D), "W": (D, H), "c": (H,), "V": (H, D)}
    return {name: rng.standard_normal(shape, "f4") for name, shape in shapes.items()}


def recurra_program(backend, B, T, D, H):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        x, y = rc.input(rc.f32[D], (b,)), rc.input(rc.f32[D], (b,))
        W, c, V = rc.input(rc.f32[D, H]), rc.input(rc.f32[H]), rc.input(rc.f32[H, D])

        def flow(z):
            return (z @ W + c).tanh() @ V

        z = rc.like(rc.f32[D], (b, t))
        k1 = flow(z)
        k2 = flow(z + DT / 2 * k1)
        k3 = flow(z + DT / 2 * k2)
        k4 = flow(z + DT * k3)
        z[b, 0] = x
        z[b, t + 1] = z + DT / 6 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        loss = (z[b, steps - 1] - y).square().sum()[0:rows].mean()
        loss.backward(wrt=[W, c, V])
        rc.output(loss=loss, d_W=W.grad, d_c=c.grad, d_V=V.grad)
    return ctx.compile({rows: B, steps: T + 1}, backend=backend)


def by_hand(B, T, D, H):
    def loss(parameters, x, y):
        W, c, V = parameters

        def flow(z):
            return jnp.tanh(z @ W + c) @ V

        def step(z, _):
            k1 = flow(z)
            k2 = flow(z + DT / 2 * k1)
            k3 = flow(z + DT / 2 * k2)
            k4 = flow(z + DT * k3)
            return z + DT / 6 * (k1 + 2.0 * k2 + 2.0 * k3 + k4), None

        z, _ = jax.lax.scan(step, x, length=T)
        return jnp.square(z - y).sum(1).mean()

    @jax.jit
    def value_and_gradient(x, y, W, c, V):
        value, slopes = jax.value_and_grad(loss)((W, c, V), x, y)
        return dict(zip(("loss", "d_W", "d_c", "d_V"), (value, *slopes), strict=True))

    return value_and_gradient
