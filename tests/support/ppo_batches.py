"""Stored batches for PPO's programs, and what the oracle makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.ppo import environment
from benchmarks.ppo.oracle import Batch, recorded
from benchmarks.ppo.workload import ACTIONS, Theta, Work, initial


def theta_of(work: Work, seed: int = 1, spread: float = 0.1) -> Theta:
    """Parameters away from their start, so that policies and values vary; f64."""
    rng = np.random.default_rng(seed)
    return {
        k: x + spread * rng.standard_normal(x.shape)
        for k, x in initial(work, dtype=np.float64).items()
    }


def episodes(work: Work, theta: Theta, seed: int = 2) -> Batch:
    """Steps of the real environment under random actions, some rows about to end; f64."""
    rng = np.random.default_rng(seed)
    state = environment.reset(np, rng.random(work.B), work.features)
    state = state._replace(n=(state.ends - rng.integers(1, work.T, work.B)).astype(np.int32))
    o, a, r, done = [state.x], [], [], []
    for _ in range(work.T):
        action = rng.integers(0, ACTIONS, work.B)
        state, reward, ended = environment.step(np, state, action)
        for xs, x in zip((o, a, r, done), (state.x, action, reward, ended), strict=True):
            xs.append(x)
    steps: Any = [np.stack(xs) for xs in (o, a, r, done)]
    return recorded(theta, *steps)


def older(batch: Batch, seed: int = 3) -> Batch:
    """The same steps as if another policy had acted: ratios and values on both sides of a clip."""
    rng = np.random.default_rng(seed)
    log_p = batch.log_p + 0.3 * rng.standard_normal(batch.log_p.shape)
    return replace(batch, log_p=log_p, value=batch.value + 0.3 * rng.standard_normal(log_p.shape))
