"""All shortest paths of a graph: at step k, paths may go through node k, too.

Floyd, Algorithm 97: Shortest Path, 1962; Cormen et al., Introduction to Algorithms, section 23.2.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"N": 128}
SMALL = {"N": 5}


def inputs(rng, N):
    w = rng.uniform(1.0, 10.0, (N, N)).astype("f4")
    w = np.where(rng.random((N, N)) < 0.1, w, np.float32(1e6))
    np.fill_diagonal(w, 0.0)
    return {"w": w.astype("f4")}


def recurra_program(backend, N):
    ctx = rc.Context(num_dims=3)
    with ctx as ((k, K), (i, I), (j, J)):
        w = rc.input(rc.f32, (i, j))
        d = rc.like(rc.f32, (k, i, j))
        d[0, i, j] = rc.minimum(w, w[i, 0] + w[0, j])
        d[k, i, j] = rc.minimum(d[k - 1, i, j], d[k - 1, i, k] + d[k - 1, k, j])
        rc.output(dist=d[K - 1, i, j])
    return ctx.compile({K: N, I: N, J: N}, backend=backend)


def by_hand(N):
    def step(k, d):
        return jnp.minimum(d, d[:, k, None] + d[None, k])

    @jax.jit
    def solve(w):
        return {"dist": jax.lax.fori_loop(0, N, step, w)}

    return solve
