"""Environments as recurrences: `o[b, i, 0] = env.reset(...)`, `o[b, i, t+1], r, d = env.step(a)`.

episodes="absorbing"   from the step that ends an episode, `done` stays true, the observation
                       stays the last one and the reward is 0, until the next reset
episodes="autoreset"   o' is then the first observation of the next episode, and an iteration
                       begins where the last one ended

    host.HostEnv      a Gymnasium environment, called once per step for a whole batch
    TraceableEnv      one written in jax.numpy, which becomes part of the compiled program
"""

from __future__ import annotations

from typing import Any

from recurra.rl.transitions import Env, Stepped, TraceableEnv, Transition, require_known
from recurra.support.optional_packages import needed_by

__all__ = [
    "Env",
    "Stepped",
    "TraceableEnv",
    "Transition",
    "from_brax",
    "from_envpool",
    "from_gymnax",
    "make",
    "traceable",
]


def make(id: str, episodes: str = "absorbing", **kwargs: Any) -> Env:
    """A Gymnasium environment by its id; `kwargs` are those of `gymnasium.make_vec`."""
    return _on_the_host("Spec", id, kwargs, episodes)


def from_envpool(id: str, episodes: str = "absorbing", **kwargs: Any) -> Env:
    """An environment of EnvPool, where that can be imported; `kwargs` are those of envpool.make."""
    return _on_the_host("PoolSpec", id, kwargs, episodes)


def _on_the_host(spec: str, id: str, kwargs: dict[str, Any], episodes: str) -> Env:
    require_known(episodes)
    with needed_by("an environment of Gymnasium's or EnvPool's"):
        from recurra.rl import host, vector
    return host.HostEnv(getattr(vector, spec)(id, kwargs, episodes))


traceable = TraceableEnv


def from_gymnax(env: Any, params: Any = None, episodes: str = "absorbing") -> Env:
    """An environment of gymnax, part of the compiled program; `params`: its default ones."""
    require_known(episodes)
    from recurra.rl import adapters

    return adapters.gymnax(env, params, episodes)


def from_brax(env: Any, episodes: str = "absorbing") -> Env:
    """An environment of brax (without auto_reset), part of the compiled program."""
    require_known(episodes)
    from recurra.rl import adapters

    return adapters.brax(env, episodes)
