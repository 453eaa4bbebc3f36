"""A trivial environment, the same arithmetic in NumPy, JAX and Torch: what is timed is the rest.

    reset(u)       → x = x0, n = 0, and how many steps its episodes have: 100 + ⌊256 u⌋
    step(state, a) → x' = 0.95 x + push[a], reward = mean of the first four of x', n' = n + 1

An episode that ends starts again at once, in the same step. State is explicit; nothing is drawn
but `u`, one number per row. Rows lie in any axes but the one of the features.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.ppo.workload import ACTIONS

KEPT, PUSH, REWARDED = 0.95, 0.05, 4
SHORTEST, SPREAD = 100, 256


class State(NamedTuple):
    """The observation x [features, in one of the axes], steps done n, steps of an episode ends."""

    x: Any
    n: Any
    ends: Any


@cache
def tables(features: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What each action adds, push [ACTIONS, features], and where episodes start, x0 [features]."""
    rng = np.random.default_rng(0)
    push = PUSH * rng.standard_normal((ACTIONS, features))
    return push.astype(np.float32), rng.standard_normal(features).astype(np.float32)


def reset(xp: Any, u: Any, features: int, axis: int = -1) -> State:
    """The state that begins a run; u of the rows' shape, `xp` numpy or jax.numpy."""
    start = xp.asarray(tables(features)[1], dtype=u.dtype)
    n = xp.zeros(u.shape, dtype=np.int32)
    x = xp.broadcast_to(start, (*u.shape, features))
    ends = (SHORTEST + xp.floor(SPREAD * u)).astype(np.int32)
    return State(xp.moveaxis(x, -1, axis), n, ends)


def step(xp: Any, state: State, a: Any, axis: int = -1) -> tuple[State, Any, Any]:
    """The next state, rewards and whether episodes ended, of the rows' shape."""
    x, n, ends = state
    features = x.shape[axis]
    push, start = (xp.asarray(table, dtype=x.dtype) for table in tables(features))
    x = KEPT * x + _pushed(xp, push, a, axis)
    reward = xp.take(x, np.arange(REWARDED), axis=axis).mean(axis=axis)
    done = n + 1 >= ends
    column = start.reshape((features,) + (1,) * (x.ndim - 1)) if axis == 0 else start
    x = xp.where(xp.expand_dims(done, axis), column, x)
    return State(x, xp.where(done, 0, n + 1).astype(np.int32), ends), reward, done


def _pushed(xp: Any, push: Any, a: Any, axis: int) -> Any:
    """push[a], its features along `axis`."""
    if xp is np:
        return np.moveaxis(push[a], -1, axis)
    # XLA gathers three times as slowly as it multiplies by ones and zeros; the sum is as exact.
    chosen = xp.expand_dims(a, axis) == xp.expand_dims(xp.arange(ACTIONS), _others(a, axis))
    chosen = chosen.astype(push.dtype)
    return push.T @ chosen if axis == 0 else chosen @ push


def _others(a: Any, axis: int) -> tuple[int, ...]:
    """The axes of the rows, in an array whose features lie along `axis`."""
    return tuple(range(1, a.ndim + 1)) if axis == 0 else tuple(range(a.ndim))
