"""Sample Factory in its serial and synchronous mode: one worker, one batched environment.

Its value loss is E max(..)², without the half: the coefficient is halved. Not shuffled, no KL term.
It trains a whole run in one call; the environment is the gate that stops it after every T steps.
What it tells every few seconds is turned off, and so is its watch over components that stand still.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import Contestant
from benchmarks.ppo.installed.gate import Gate
from benchmarks.ppo.installed.rows import Rows, Told, counted, of_modules
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

gym: Any = importlib.import_module("gymnasium")
arguments: Any = importlib.import_module("sample_factory.cfg.arguments")
register_env: Any = importlib.import_module("sample_factory.envs.env_utils").register_env
make_runner: Any = importlib.import_module("sample_factory.train").make_runner
Env: Any = gym.Env


class Vector(Env):  # pyright: ignore[reportUntypedBaseClass]
    """Our rows as the agents of one environment; another process asks for its spaces first."""

    gate: Gate | None = None  # in the process that trains
    told = Told()
    is_multiagent = True

    def __init__(self, work: Work) -> None:
        self.rows, self.num_agents = Rows(work), work.B
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (work.features,), np.float32)
        self.action_space = gym.spaces.Discrete(ACTIONS)
        self.never = np.zeros(work.B, np.bool_)

    def reset(self, **_: Any) -> Any:
        return self.rows.reset(), {}

    def step(self, actions: Any) -> Any:
        work = self.rows.work
        if self.gate and self.rows.taken % (work.B * work.T) == 0:
            self.told.taken = self.rows.taken
            self.gate.wait()
        o, r, done = self.rows.step(np.asarray(actions).reshape(work.B))
        return o, r, done, self.never, {}


def environment_of(work: Work, *_: Any, **__: Any) -> Vector:
    """What it calls, in its processes, with a name and settings."""
    return Vector(work)


def make(work: Work) -> Contestant:
    """The runner that its `run_rl` makes, in a thread."""
    logging.getLogger("rl").setLevel(logging.WARNING)
    folder = tempfile.TemporaryDirectory(prefix="recurra-bench-")
    register_env("rows", partial(environment_of, work))
    batch, hidden = work.B * work.T, [str(work.width)] * work.depth
    options = {
        "env": "rows", "experiment": "bench", "train_dir": folder.name, "device": "cpu",
        "seed": SEED, "serial_mode": True, "async_rl": False, "batched_sampling": True,
        "num_workers": 1, "num_envs_per_worker": 1, "worker_num_splits": 1, "rollout": work.T,
        "batch_size": batch, "num_batches_per_epoch": 1, "num_epochs": 1,
        "heartbeat_reporting_interval": 10**9,
        "set_workers_cpu_affinity": False, "train_for_env_steps": 10**12, "save_every_sec": 10**9,
        "gamma": GAMMA, "gae_lambda": LAMBDA, "learning_rate": LR, "adam_eps": EPS,
        "ppo_clip_ratio": CLIP, "ppo_clip_value": CLIP, "exploration_loss_coeff": ENTROPY,
        "value_loss_coeff": VALUE / 2, "kl_loss_coeff": 0.0, "max_grad_norm": NORM,
        "normalize_input": False, "normalize_returns": False, "with_vtrace": False,
        "use_rnn": False, "nonlinearity": "tanh", "actor_critic_share_weights": False,
    }  # fmt: skip
    line = [f"--{name}={value}" for name, value in options.items()]
    line += ["--encoder_mlp_layers", *hidden]
    parser, _ = arguments.parse_sf_args(line)
    _, runner = make_runner(arguments.parse_full_cfg(parser, line))

    def train() -> None:
        assert folder, "kept as long as it trains"
        runner.init()
        runner.run()

    def parameters() -> int:
        return of_modules(runner.learners[0].learner.actor_critic)

    Vector.gate = gate = Gate(train)
    return counted("Sample Factory", work, Vector.told, gate.run, parameters)
