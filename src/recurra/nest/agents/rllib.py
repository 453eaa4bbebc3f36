"""LoopNest-v0 for RLlib: the environment that it registers, and settings of what learners it has.

    from ray.rllib.algorithms.ppo import PPOConfig
    from recurra.nest.agents import rllib

    learner = rllib.configured(PPOConfig(), tables=tables).build_algo()
    learner.train()

An observation begins with the mask of legal actions, by which the networks leave out what is not
legal; then a nest as our own agents see it, and how much of the episode is left. As that is seen,
an episode ends where its actions are used up, and later rewards count as much as early ones.
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
from recurra.nest.state import Vector
from recurra.support.optional_packages import needed_by

LOGITS, VALUES = "action_dist_inputs", "qf_preds"  # RLlib's names of what is masked
FORWARD = {
    LOGITS: ("_forward", "_forward_train"),
    VALUES: ("_qf_forward_helper",),
}
LAYERS = (256, 256)


class FlatLoopNest(gymnasium.Env[NDArray[np.float32], np.int64]):
    """LoopNest-v0 with one row of numbers per observation. `made_of`, RLlib's env_config, has
    `tables`, in which case nothing is measured, or what `LoopNestEnv` is made of.
    """

    def __init__(self, made_of: Mapping[str, Any]) -> None:
        given = dict(made_of)
        self.env = _tabulated(given.pop("tables")) if "tables" in given else LoopNestEnv(**given)
        self.action_space = self.env.action_space
        loops = int(np.prod(self.env.observation_space.shape or ()))
        count = len(self.env.actions.names) + loops + 1
        self.observation_space = gymnasium.spaces.Box(0.0, 64.0, (count,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, int] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, object]]:
        super().reset(seed=seed)
        seen, info = self.env.reset(seed=seed, options=options)
        return self._flat(seen, info), {}

    def step(
        self, action: int | np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, object]]:
        seen, reward, _, over, info = self.env.step(action)
        return self._flat(seen, info), reward, over, False, {}

    def _flat(self, seen: Vector, info: Mapping[str, Any]) -> NDArray[np.float32]:
        left = self.env.left / self.env.actions.steps
        row = (info["action_mask"], features(seen[None])[0], [left])
        return np.concatenate(row).astype(np.float32)


def _tabulated(tables: Sequence[Table]) -> LoopNestEnv:
    """Rewards are shares of the highest of the peaks."""
    known = {t.problem: t for t in tables}
    return LoopNestEnv(
        list(known),
        actions=tables[0].actions,
        evaluator=lambda p: known[p].evaluate,
        peak_gflops=max(t.peak for t in tables),
    )


def configured(config: Any, **made_of: Any) -> Any:
    """RLlib's configuration of a learner (PPO, APPO, IMPALA, DQN), for LoopNest-v0.

    `made_of` is as `FlatLoopNest` has it. All else is as in RLlib, and can be set afterwards.
    """
    register()
    spec = _of_ray("ray.rllib.core.rl_module.rl_module").RLModuleSpec
    own = config.get_default_rl_module_spec().module_class
    layers = {"fcnet_hiddens": list(LAYERS), "head_fcnet_hiddens": []}
    return (
        config.environment(ID, env_config=made_of)
        .rl_module(rl_module_spec=spec(module_class=masked(own), model_config=layers))
        .training(gamma=1.0)
    )


def register() -> None:
    """Makes `.environment("LoopNest-v0", env_config={"tables": tables})` work."""
    _of_ray("ray.tune.registry").register_env(ID, FlatLoopNest)


def masked(kind: type) -> type:
    """RLlib's own network of a learner, for which what is not legal has no chance and no value."""
    name = VALUES if hasattr(kind, FORWARD[VALUES][0]) else LOGITS
    methods = {x: _masking(getattr(kind, x), name) for x in FORWARD[name]}
    return type(f"Masked{kind.__name__}", (kind,), methods)


def _masking(forward: Callable[..., dict[str, Any]], name: str) -> Callable[..., dict[str, Any]]:
    """The method, with these outputs masked. RLlib knows values of -inf; logits stay finite."""
    least = -np.inf if name == VALUES else -1e9

    def forwarded(
        self: object, batch: Mapping[str, Any], *arguments: object, **options: object
    ) -> dict[str, Any]:
        found = forward(self, batch, *arguments, **options)
        legal = batch["obs"][..., : found[name].shape[-1]] > 0.5
        return {**found, name: found[name].masked_fill(~legal, least)}

    return forwarded


def _of_ray(module: str) -> ModuleType:
    with needed_by("an agent of RLlib", extra="rllib"):
        return importlib.import_module(module)
