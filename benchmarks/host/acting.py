"""A policy of two layers of 64 acts in one environment; nothing is learned."""

import jax
import jax.numpy as jnp
import numpy as np

import recurra as rc
from benchmarks.host import EPISODE, environment

SIZES = {"steps": 8000}
SMALL = {"steps": 200}
LEAST_RETURN = 5.0
PART = 100  # steps of which one number is kept
LAYERS = ((4, 64), (64, 64), (64, 2))


def recurra_program(backend, steps):
    ctx = rc.Context(dims="i t")
    with ctx as ((i, parts), (t, part)):
        env = rc.rl.env.make(EPISODE, episodes="autoreset", vectorization_mode="sync")
        first, second, last = (rc.nn.Linear(*sizes, domain=()) for sizes in LAYERS)
        o = rc.like(env.observation_space, domain=(i, t))
        o[i, 0] = env.reset(domain=(i,), rows=())
        hidden = second(first(o).tanh()).tanh()
        a = rc.nn.Categorical(last(hidden)).sample()
        o[i, t + 1], reward, done = env.step(a)
        rc.log(reward=reward[i, 0:part].sum(), ended=done[i, 0:part].cast("f32").sum())
    return ctx.compile({parts: steps // PART, part: PART}, backend=backend)


def by_hand(steps):
    """JAX draws the actions, as one compiled function; the loop is Python's."""

    @jax.jit
    def act(key, t, o, weights):
        for w, b in weights[:-1]:
            o = jnp.tanh(o @ w + b)
        w, b = weights[-1]
        return jax.random.categorical(jax.random.fold_in(key, t), o @ w + b)

    def run(seed):
        env = environment()
        key = jax.random.key(seed)
        keys = jax.random.split(key, len(LAYERS))
        weights = [
            (jax.random.normal(k, sizes) * 0.1, jnp.zeros(sizes[1]))
            for k, sizes in zip(keys, LAYERS, strict=True)
        ]
        o, _ = env.reset(seed=seed)
        rewards, ended = np.zeros(steps, "f4"), np.zeros(steps, "f4")
        for t in range(steps):
            o, reward, term, trunc, _ = env.step(np.asarray(act(key, t, o, weights)))
            rewards[t], ended[t] = reward[0], term[0] or trunc[0]
        return {
            "reward": rewards.reshape(-1, PART).sum(1),
            "ended": ended.reshape(-1, PART).sum(1),
        }

    return run
