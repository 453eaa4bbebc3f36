"""Shortest paths from node 0 along a list of edges.

Bellman, On a Routing Problem, 1958; Cormen et al., Introduction to Algorithms, section 22.1.
"""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc

SIZES = {"V": 128, "E": 2048}
SMALL = {"V": 5, "E": 9}
FAR = 1e9


def inputs(rng, V, E):
    ring = np.arange(V)  # a way around, so that every node is reached
    source = np.concatenate([ring, rng.integers(0, V, E - V)])
    target = np.concatenate([(ring + 1) % V, rng.integers(0, V, E - V)])
    return {
        "source": source.astype("i4"),
        "target": target.astype("i4"),
        "weight": rng.uniform(1.0, 10.0, E).astype("f4"),
    }


def recurra_program(backend, V, E):
    ctx = rc.Context(num_dims=2)
    with ctx as ((k, rounds), (e, edges)):
        source, target = rc.input(rc.i32, (e,)), rc.input(rc.i32, (e,))
        weight = rc.input(rc.f32, (e,))
        distance = rc.like(rc.f32[V], (k,))
        along = distance.take(source) + weight
        distance[0] = np.where(np.arange(V) == 0, np.float32(0.0), np.float32(FAR))
        distance[k + 1] = distance.scatter(0, target[0:edges], along[k, 0:edges], reduce="min")
        rc.output(distance=distance[rounds - 1])
    return ctx.compile({rounds: V, edges: E}, backend=backend)


def by_hand(V, E):
    @jax.jit
    def solve(source, target, weight):
        def step(_, distance):
            return distance.at[target].min(distance[source] + weight)

        start = jnp.full(V, FAR).at[0].set(0.0)
        return {"distance": jax.lax.fori_loop(0, V - 1, step, start)}

    return solve
