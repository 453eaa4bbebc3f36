"""Environments as recurrences: `o[b, i, 0] = env.reset(...)`, `o[b, i, t+1], r, d = env.step(a)`.

episodes="absorbing"   from the step that ends an episode, `done` stays true, the observation
                       stays the last one and the reward is 0, until the next reset
episodes="autoreset"   o' is then the first observation of the next episode, and an iteration
                       begins where the last one ended

    make              a Gymnasium environment, called once per step for a whole batch
    traceable         one written in jax.numpy, which becomes part of the compiled program
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from recurra.analysis.argument_checks import check_arguments
from recurra.frontend.context import jax_fn
from recurra.ir.types import Type
from recurra.rl.space import Space
from recurra.rl.traceable_env import StatefulEnv, TraceableEnv
from recurra.rl.transitions import Env, Stepped, Transition, require_known
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


def make(id: str, episodes: str = "absorbing", **kwargs: object) -> Env:
    """A Gymnasium environment by its id; `kwargs` are those of `gymnasium.make_vec`."""
    return _on_the_host("Spec", id, kwargs, episodes)


def from_envpool(id: str, episodes: str = "absorbing", **kwargs: object) -> Env:
    """An environment of EnvPool, if that is installed; `kwargs` are those of envpool.make."""
    return _on_the_host("PoolSpec", id, kwargs, episodes)


def _on_the_host(spec: str, id: str, kwargs: dict[str, object], episodes: str) -> Env:
    require_known(episodes)
    with needed_by("an environment of Gymnasium's or EnvPool's"):
        from recurra.rl import host_env, vector_env
    return host_env.HostEnv(getattr(vector_env, spec)(id, kwargs, episodes))


@partial(
    check_arguments, name="rc.rl.env.traceable", hint="name both: observation=rc.f32[4], actions=2"
)
def traceable(
    reset: Callable[..., Any],
    step: Callable[..., Any],
    observation: Type,
    actions: int | Type,
    reward: float = 1.0,
    draws: int | None = None,
    episodes: str = "absorbing",
    via: Callable[..., Any] = jax_fn,
) -> Env:
    """An environment in jax.numpy, part of the compiled program: its state is what it shows.

        def reset(u): return u - 0.5                                   # u: [draws] from [0, 1)
        def step(x, a): return x + a, -jnp.abs(x[0]), jnp.abs(x[0]) > 1.5
        env = rc.rl.env.traceable(reset, step, observation=rc.f32[1], actions=3)

    Args:
        reset: f(u) gives the first state of an episode, from `draws` uniform numbers.
        step: f(state, action) gives (state, done), with `reward` for every step, or
            (state, reward, done).
        observation: the type of a state, f32[n].
        actions: the number of actions, which are numbers from 0 on; or their type, rc.f32[2].
        draws: the number of uniform draws that `reset` gets; by default the length of the state.
        episodes: see the module.
        via: rc.jax_fn calls the functions, rc.import_jax converts them to equations, on every
            backend.
    """
    require_known(episodes)
    space = Space(actions) if isinstance(actions, Type) else Space(Type("i32"), actions)
    (width,) = observation.shape
    if draws is None:
        assert isinstance(width, int)
        draws = width
    if episodes == "absorbing":
        return TraceableEnv(reset, step, observation, space, reward, draws, via)

    def first(draw: object) -> tuple[object, object]:
        state = reset(draw)
        return state, state

    def after(_: object, state: object, action: object) -> tuple[object, ...]:
        state, *paid, done = step(state, action)
        return state, state, paid[0] if paid else done * 0.0 + reward, done, None

    return StatefulEnv("a traceable environment", first, after, space, draws, episodes, via)


def from_gymnax(env: object, params: object = None, episodes: str = "absorbing") -> Env:
    """An environment of gymnax, part of the compiled program; `params` are by default its own."""
    require_known(episodes)
    from recurra.rl import adapters

    return adapters.gymnax(env, params, episodes)


def from_brax(env: object, episodes: str = "absorbing") -> Env:
    """An environment of brax (without auto_reset), part of the compiled program."""
    require_known(episodes)
    from recurra.rl import adapters

    return adapters.brax(env, episodes)
