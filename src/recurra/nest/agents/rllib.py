"""LoopNest-v0 for RLlib: its registration, and configurations of RLlib's learners for it.

    from ray.rllib.algorithms.ppo import PPOConfig
    from recurra.nest.agents import rllib

    learner = rllib.configured(PPOConfig(), tables=tables).build_algo()
    learner.train()

An observation is the mask of legal actions, by which the networks exclude illegal ones, then the
observation of our own agents: a nest, and the share of the episode that is left. As that is
observed, an episode terminates where its actions are used up, without a discount of rewards.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from recurra.nest.agents.policy import features
from recurra.nest.gymnasium_env import ID, LoopNestEnv
from recurra.nest.measured_table import Table
from recurra.nest.observation import Vector
from recurra.support.optional_packages import needed_by

LOGITS, VALUES = "action_dist_inputs", "qf_preds"  # RLlib's names of the masked outputs
FORWARD = {
    LOGITS: ("_forward", "_forward_train"),
    VALUES: ("_qf_forward_helper",),
}
LAYERS = (256, 256)


class FlatLoopNest(gymnasium.Env[NDArray[np.float32], np.int64]):
    """LoopNest-v0 with one row of numbers per observation.

    RLlib's env_config has `tables`, without measurements, or the arguments of `LoopNestEnv`.
    """

    def __init__(self, env_config: Mapping[str, Any]) -> None:
        options = dict(env_config)
        tables = options.pop("tables", None)
        self.env = _tabulated(tables) if tables is not None else LoopNestEnv(**options)
        self.action_space = self.env.action_space
        loops = int(np.prod(self.env.observation_space.shape or ()))
        count = len(self.env.actions.names) + loops + 1
        self.observation_space = gymnasium.spaces.Box(0.0, 64.0, (count,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, int] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, object]]:
        super().reset(seed=seed)
        observation, info = self.env.reset(seed=seed, options=options)
        return self._flat(observation, info), {}

    def step(
        self, action: int | np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, object]]:
        observation, reward, _, over, info = self.env.step(action)
        return self._flat(observation, info), reward, over, False, {}

    def _flat(self, observation: Vector, info: Mapping[str, Any]) -> NDArray[np.float32]:
        left = self.env.left / self.env.actions.steps
        row = (info["action_mask"], features(observation[None])[0], [left])
        return np.concatenate(row).astype(np.float32)


def _tabulated(tables: Sequence[Table]) -> LoopNestEnv:
    """Return an environment on tables, with rewards as shares of their highest peak."""
    known = {t.problem: t for t in tables}
    return LoopNestEnv(
        list(known),
        actions=tables[0].actions,
        evaluator=lambda p: known[p].evaluate,
        peak_gflops=max(t.peak for t in tables),
    )


def configured(config: Any, **env_config: Any) -> Any:
    """Configure a learner of RLlib (PPO, APPO, IMPALA, DQN) for LoopNest-v0.

    `env_config` is that of `FlatLoopNest`. Everything else is RLlib's, and can be set afterwards.
    """
    register()
    spec = _import_ray("ray.rllib.core.rl_module.rl_module").RLModuleSpec
    own = config.get_default_rl_module_spec().module_class
    layers = {"fcnet_hiddens": list(LAYERS), "head_fcnet_hiddens": []}
    return (
        config.environment(ID, env_config=env_config)
        .rl_module(rl_module_spec=spec(module_class=masked(own), model_config=layers))
        .training(gamma=1.0)
    )


def register() -> None:
    """Register the environment for `.environment("LoopNest-v0", env_config={"tables": tables})`."""
    _import_ray("ray.tune.registry").register_env(ID, FlatLoopNest)


def masked(kind: type) -> type:
    """Return RLlib's own network of a learner, with illegal actions excluded."""
    name = VALUES if hasattr(kind, FORWARD[VALUES][0]) else LOGITS
    methods = {x: _masking(getattr(kind, x), name) for x in FORWARD[name]}
    return type(f"Masked{kind.__name__}", (kind,), methods)


def _masking(forward: Callable[..., dict[str, Any]], name: str) -> Callable[..., dict[str, Any]]:
    """Return the method with these outputs masked: values by -inf, logits by a finite number."""
    least = -np.inf if name == VALUES else -1e9

    def masked_forward(
        self: object, batch: Mapping[str, Any], *arguments: object, **options: object
    ) -> dict[str, Any]:
        found = forward(self, batch, *arguments, **options)
        legal = batch["obs"][..., : found[name].shape[-1]] > 0.5
        return {**found, name: found[name].masked_fill(~legal, least)}

    return masked_forward


def _import_ray(module: str) -> ModuleType:
    with needed_by("an agent of RLlib", extra="rllib"):
        return importlib.import_module(module)
