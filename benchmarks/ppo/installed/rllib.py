"""RLlib, in one process: no remote workers, its own vectorizer around environments of one row.

Ray's daemons run beside it and are not in its process CPU. KL terms are off; values are clipped by
RLlib's own rule, which bounds the squared error. A row spends a step on its reset, so an iteration
goes on until it has B·T others: up to B more of them than it needs, which are not counted.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from benchmarks.harness import Contestant
from benchmarks.ppo import environment
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

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # it stays on this machine
gym: Any = importlib.import_module("gymnasium")
ppo: Any = importlib.import_module("ray.rllib.algorithms.ppo")
module: Any = importlib.import_module("ray.rllib.core.rl_module.default_model_config")
Env: Any = gym.Env


class Single(Env):  # pyright: ignore[reportUntypedBaseClass]
    """The next of the rows; RLlib copies what it is given, so all count in one class."""

    rows: Rows
    made = taken = 0

    def __init__(self, config: Any) -> None:
        B, features = self.rows.work.B, self.rows.work.features
        self.push, self.start = environment.tables(features)
        self.ends = int(environment.SHORTEST + environment.SPREAD * self.rows.u[Single.made % B])
        Single.made += 1
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (features,), np.float32)
        self.action_space = gym.spaces.Discrete(ACTIONS)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.x, self.n = self.start.copy(), 0
        return self.x, {}

    def step(self, action: Any) -> Any:
        Single.taken += 1
        self.x, self.n = environment.KEPT * self.x + self.push[action], self.n + 1
        reward = float(self.x[: environment.REWARDED].mean())
        return self.x, reward, self.n >= self.ends, False, {}


def make(work: Work) -> Contestant:
    """PPOConfig().build_algo(), one `train` an iteration."""
    rows = Single.rows = Rows(work)
    batch = work.B * work.T
    config = (
        ppo.PPOConfig()
        .environment(Single)
        .env_runners(
            num_env_runners=0, num_envs_per_env_runner=work.B, rollout_fragment_length=work.T
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=batch, minibatch_size=batch, num_epochs=1, gamma=GAMMA,
            lambda_=LAMBDA, lr=LR, clip_param=CLIP, entropy_coeff=ENTROPY, vf_loss_coeff=VALUE / 2,
            use_kl_loss=False, grad_clip=NORM, grad_clip_by="global_norm",
        )
        .rl_module(
            model_config=module.DefaultModelConfig(
                fcnet_hiddens=[work.width] * work.depth, fcnet_activation="tanh",
                vf_share_layers=False,
            )
        )
        .debugging(seed=SEED)
    )  # fmt: skip
    algorithm = config.build_algo()

    def iterate(index: int) -> None:
        for _ in range(index):
            algorithm.train()
        rows.taken = Single.taken // work.B * work.B

    def parameters() -> int:
        found = algorithm.learner_group.foreach_learner(lambda learner: learner.module)
        return of_modules(*(m for result in found for m in result.get().values()))

    return counted("RLlib", work, rows, iterate, parameters)
