"""Environments of other libraries, by their protocols: gymnax, brax.

Nothing is imported: an environment object comes from its own library.
"""

from __future__ import annotations

from typing import Any

from recurra.errors import RecurraError
from recurra.ir.types import SHORT_NAME, Type
from recurra.rl.space import AnySpace, CompositeSpace, Space
from recurra.rl.traceable_env import StatefulEnv

KEY_BITS = 8388608.0  # 2**23: a uniform f32 draw is a multiple of its inverse


def key(draw: Any) -> object:
    """A raw JAX key, u32[2], from two uniform draws."""
    return (draw * KEY_BITS).astype("uint32")


def gymnax(env: Any, params: object, episodes: str) -> StatefulEnv:
    """reset_env(key, params) -> o, state;  step_env(key, state, a, params) -> o, state, r, d, info

    With six results of `step` (gymnax 1), `is_truncated(state, params)` tells truncation; with five
    (gymnax 0.0), a time limit terminates the episode like a terminal state.
    """
    _require(env, "gymnax", ("reset_env", "step_env", "step", "action_space"))
    params = env.default_params if params is None else params
    tells = _results_of_step(env, params) == 6

    def reset(draw: object) -> tuple[object, object]:
        o, state = env.reset_env(key(draw), params)
        return state, o

    def step(draw: object, state: object, action: object) -> tuple[object, ...]:
        o, state, reward, term, _ = env.step_env(key(draw), state, action, params)
        return state, o, reward, term, env.is_truncated(state, params) if tells else None

    name = str(getattr(env, "name", type(env).__name__))
    return StatefulEnv(name, reset, step, _space(name, env.action_space(params)), episodes=episodes)


def _results_of_step(env: Any, params: object) -> int:
    from recurra.backends.jax.foreign_function import result_tree

    def both(draw: object) -> tuple[object, ...]:
        _, state = env.reset_env(key(draw), params)
        action = env.action_space(params).sample(key(draw))
        return tuple(env.step(key(draw), state, action, params))

    count = len(result_tree(both, [Type("f32", (2,))]))
    if count not in (5, 6):
        raise RecurraError.at_user_line(
            f"{type(env).__name__} is no environment of gymnax",
            facts=f"its step gives {count} results, not 5 (gymnax 0.0) or 6 (gymnax 1)",
        )
    return count


def brax(env: Any, episodes: str) -> StatefulEnv:
    """reset(key) -> State, step(State, a) -> State, with obs, reward, done and info.

    Brax's EpisodeWrapper tells truncation. An environment that resets by itself hides the last
    observation of an episode, and one with VmapWrapper has rows of its own: both are refused.
    """
    _require(env, "brax", ("reset", "step", "action_size"))
    layer = env
    while layer is not None:
        if type(layer).__name__ in ("AutoResetWrapper", "VmapWrapper"):
            raise RecurraError.at_user_line(
                f"this environment of brax is wrapped in {type(layer).__name__}",
                facts="episodes and rows are made by the program: episodes=.., domain=(b, i)",
                hint="create it with auto_reset=False and without batch_size",
            )
        layer = vars(layer).get("env")

    def reset(draw: object) -> tuple[object, object]:
        state = env.reset(key(draw))
        return state, state.obs

    def step(draw: object, state: Any, action: object) -> tuple[object, ...]:
        state = env.step(state, action)
        trunc = state.info.get("truncation")
        term = state.done if trunc is None else state.done * (1 - trunc)
        return state, state.obs, state.reward, term, trunc

    name = type(env.unwrapped).__name__
    return StatefulEnv(name, reset, step, Space(Type("f32", (env.action_size,))), episodes=episodes)


def _require(env: object, library: str, parts: tuple[str, ...]) -> None:
    missing = [p for p in parts if not hasattr(env, p)]
    if missing:
        raise RecurraError.at_user_line(
            f"{type(env).__name__} is no environment of {library}",
            facts=f"it has no {', '.join(missing)}",
        )


def _space(name: str, space: Any) -> AnySpace:
    """A space of gymnax, by its attributes."""
    inner = getattr(space, "spaces", None)
    if hasattr(space, "n"):
        return Space(Type("i32"), int(space.n))
    if isinstance(inner, dict):
        return CompositeSpace({k: _space(name, s) for k, s in inner.items()})
    if inner is not None:
        return CompositeSpace(tuple(_space(name, s) for s in inner))
    dtype = getattr(space.dtype, "__name__", None) or str(space.dtype)
    return Space(Type(SHORT_NAME.get(dtype, "f32"), tuple(space.shape)))
