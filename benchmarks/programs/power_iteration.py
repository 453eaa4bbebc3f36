"""The largest eigenvalue by power iteration, and its Rayleigh quotients on the way.

von Mises and Pollaczek-Geiringer, 1929; Golub and Van Loan, Matrix Computations, section 7.3.1.
"""

import jax
import jax.numpy as jnp

import recurra as rc

SIZES = {"N": 256, "K": 100}
SMALL = {"N": 4, "K": 6}


def inputs(rng, N, K):
    half = rng.standard_normal((N, N), "f4") / N**0.5
    return {"A": half @ half.T, "start": rng.standard_normal(N, "f4")}


def recurra_program(backend, N, K):
    ctx = rc.Context(num_dims=1)
    with ctx as ((k, steps),):
        A, start = rc.input(rc.f32[N, N]), rc.input(rc.f32[N])
        v = rc.like(rc.f32[N], (k,))
        v[0] = start / start.norm()
        Av = A @ v
        v[k + 1] = Av / Av.norm()
        rc.output(v=v[steps - 1], eigenvalue=v @ Av)
    return ctx.compile({steps: K}, backend=backend)


def by_hand(N, K):
    @jax.jit
    def iterate(A, start):
        def step(carry, _):
            Av, _ = carry
            v = Av / jnp.sqrt(Av @ Av)
            Av = A @ v
            return (Av, v), v @ Av

        (_, v), eigenvalue = jax.lax.scan(step, (start, start), None, length=K)
        return {"v": v, "eigenvalue": eigenvalue}

    return iterate
