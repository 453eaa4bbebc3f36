"""A Kalman filter, and its smoother (Rauch et al., 1965): forwards, then backwards in time.

Carts are seen through noise; where were they, and how fast? P, the same for all carts, lacks b.

python examples/kalman_filter.py
"""

import numpy as np

import recurra as rc

F = np.array([[1.0, 1.0], [0.0, 1.0]])  # position += speed
PUSH, NOISE = 0.1, 2.0  # deviations of what drives the cart, and of what is seen

ctx = rc.Context(num_dims=2)
with ctx as ((b, B), (t, T)):
    step, pushed = rc.constant(F), rc.constant(np.diag([0.0, PUSH**2]))
    cart = rc.like(rc.f32[2], domain=(b, t))
    cart[b, 0] = rc.constant([0.0, 1.0])
    cart[b, t + 1] = step @ cart + rc.constant([0.0, PUSH]) * rc.normal((b, t))
    z = cart.index(0) + NOISE * rc.normal((b, t))

    m, P = rc.like(rc.f32[2], domain=(b, t)), rc.like(rc.f32[2, 2], domain=(t,))
    guess, spread = rc.like(rc.f32[2], domain=(b, t)), rc.like(rc.f32[2, 2], domain=(t,))
    guess[b, 0] = rc.constant([0.0, 0.0])
    guess[b, t + 1] = step @ m
    spread[0] = rc.constant(10.0 * np.eye(2))
    spread[t + 1] = step @ P @ step.T + pushed
    gain = spread.index(0, axis=1) / (spread.index(0).index(0) + NOISE**2)
    m[b, t] = guess + gain * (z - guess.index(0))
    P[t] = spread - rc.einsum("a,b->ab", gain, spread.index(0))

    x = rc.like(rc.f32[2], domain=(b, t))  # given also what comes later
    det = rc.einsum("a,b->ab", spread.index(0), spread.index(1))
    turned = spread.flip(0).flip(1).T * rc.constant([[1.0, -1.0], [-1.0, 1.0]])
    inverse = turned / (det.index(0).index(1) - det.index(1).index(0))
    back = P[t] @ step.T @ inverse[t + 1]
    x[b, T - 1] = m[b, T - 1]
    x[b, t] = m + back @ (x[b, t + 1] - guess[b, t + 1])
    rc.output(cart=cart, z=z, m=m, x=x)

if __name__ == "__main__":
    run = ctx.run({B: 100, T: 200})
    for name, found in {"z": run["z"], "m": run["m"][..., 0], "x": run["x"][..., 0]}.items():
        print(name, np.sqrt(np.mean((found - run["cart"][..., 0]) ** 2)).round(2))
