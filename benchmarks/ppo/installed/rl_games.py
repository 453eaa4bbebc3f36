"""rl-games, driven by its discrete agent as its own `train` drives it, summaries left out.

Its value loss is halved like ours. Adam's ε is 1e-8 there and cannot be set. The runner turns TF32
and the like on, as it does for users; advantages are normalized over all steps.
"""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

import numpy as np

from benchmarks.harness import Contestant
from benchmarks.ppo.installed.rows import Rows, counted, of_modules
from benchmarks.ppo.workload import (
    ACTIONS,
    CLIP,
    ENTROPY,
    GAMMA,
    LAMBDA,
    LR,
    NORM,
    SEED,
    VALUE,
    Work,
)

runner: Any = importlib.import_module("rl_games.torch_runner")
environments: Any = importlib.import_module("rl_games.common.env_configurations")
vectors: Any = importlib.import_module("rl_games.common.vecenv")
IVecEnv: Any = importlib.import_module("rl_games.common.ivecenv").IVecEnv
spaces: Any = importlib.import_module("gymnasium").spaces


class Vector(IVecEnv):  # pyright: ignore[reportUntypedBaseClass]
    """Our rows as one of its vector environments."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def reset(self) -> Any:
        return self.rows.reset()

    def step(self, actions: Any) -> Any:
        o, r, done = self.rows.step(actions)
        return o, r, done, {}

    def get_number_of_agents(self) -> int:
        return 1

    def get_env_info(self) -> dict[str, Any]:
        box = spaces.Box(-np.inf, np.inf, (self.rows.work.features,), np.float32)
        return {"observation_space": box, "action_space": spaces.Discrete(ACTIONS)}


def make(work: Work) -> Contestant:
    """The agent `a2c_discrete` with separate networks."""
    rows = Rows(work)
    folder = tempfile.TemporaryDirectory(prefix="recurra-bench-")
    vectors.register("ROWS", lambda config_name, num_actors, **_: Vector(rows))
    environments.register("rows", {"vecenv_type": "ROWS", "env_creator": lambda **_: None})
    params = {
        "seed": SEED,
        "algo": {"name": "a2c_discrete"},
        "model": {"name": "discrete_a2c"},
        "network": {
            "name": "actor_critic",
            "separate": True,
            "space": {"discrete": {}},
            "mlp": {
                "units": [work.width] * work.depth,
                "activation": "tanh",
                "initializer": {"name": "default"},
            },
        },
        "config": {
            "name": "rows", "env_name": "rows", "device": "cpu", "device_name": "cpu",
            "train_dir": folder.name, "print_stats": False,
            "num_actors": work.B, "horizon_length": work.T, "minibatch_size": work.B * work.T,
            "mini_epochs": 1, "ppo": True, "reward_shaper": {"scale_value": 1.0},
            "gamma": GAMMA, "tau": LAMBDA, "learning_rate": LR, "lr_schedule": None,
            "e_clip": CLIP, "clip_value": True, "critic_coef": VALUE, "entropy_coef": ENTROPY,
            "truncate_grads": True, "grad_norm": NORM, "normalize_advantage": True,
            "normalize_input": False, "normalize_value": False, "mixed_precision": False,
        },
    }  # fmt: skip
    started = runner.Runner()
    started.load({"params": params})
    agent = started.algo_factory.create(started.algo_name, base_name="run", params=started.params)
    agent.init_tensors()
    agent.obs = agent.env_reset()

    def iterate(index: int) -> None:
        assert folder, "kept as long as the agent is"
        for _ in range(index):
            agent.update_epoch()
            agent.train_epoch()
            agent.dataset.update_values_dict(None)
            agent.frame += agent.curr_frames

    return counted("rl-games", work, rows, iterate, lambda: of_modules(agent.model))
