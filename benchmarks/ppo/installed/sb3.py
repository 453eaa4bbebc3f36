"""Stable-Baselines3, driven by `learn` on a vector environment.

Its value loss is E (v - R)², without the half: the coefficient is halved. It normalizes advantages
and clips as we do, logs what it logs, keeps a list of one dictionary per row and step.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from benchmarks.harness import Contestant
from benchmarks.ppo.installed.rows import Rows, counted, of_modules
from benchmarks.ppo.workload import (
    ACTIONS,
    CLIP,
    ENTROPY,
    EPS,
    GAMMA,
    LAMBDA,
    LR,
    NORM,
    SEED,
    VALUE,
    Work,
)

torch: Any = importlib.import_module("torch")
sb3: Any = importlib.import_module("stable_baselines3")
spaces: Any = importlib.import_module("gymnasium").spaces
VecEnv: Any = importlib.import_module("stable_baselines3.common.vec_env").VecEnv


class Vector(VecEnv):  # pyright: ignore[reportUntypedBaseClass]
    """Our rows as a vector environment."""

    def __init__(self, rows: Rows) -> None:
        box = spaces.Box(-np.inf, np.inf, (rows.work.features,), np.float32)
        self.render_mode = None
        super().__init__(rows.work.B, box, spaces.Discrete(ACTIONS))
        self.rows = rows

    def reset(self) -> Any:
        return self.rows.reset()

    def step_async(self, actions: Any) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        o, r, done = self.rows.step(self.actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for b in np.flatnonzero(done):
            infos[b]["terminal_observation"] = o[b]
        return o, r, done, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kw: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def make(work: Work) -> Contestant:
    """PPO("MlpPolicy") on one thread or on as many as the process has cores."""
    rows = Rows(work)
    hidden = [work.width] * work.depth
    batch = work.T * work.B
    ppo = sb3.PPO(
        "MlpPolicy", Vector(rows), learning_rate=LR, n_steps=work.T, batch_size=batch, n_epochs=1,
        gamma=GAMMA, gae_lambda=LAMBDA, clip_range=CLIP, clip_range_vf=CLIP, ent_coef=ENTROPY,
        vf_coef=VALUE / 2, max_grad_norm=NORM, seed=SEED, device="cpu",
        policy_kwargs={
            "net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": torch.nn.Tanh,
            "optimizer_kwargs": {"eps": EPS},
        },
    )  # fmt: skip

    def iterate(index: int) -> None:
        ppo.learn(index * batch, reset_num_timesteps=False)

    return counted("SB3", work, rows, iterate, lambda: of_modules(ppo.policy))
