"""TorchRL, from its parts as its PPO tutorial puts them together.

A synchronous collector, GAE over the whole batch, the clipped loss with value clipping, advantages
normalized over all steps; one pass over the batch, not shuffled. Its value loss is E max(..)²: the
coefficient is halved.
"""

from __future__ import annotations

import importlib
from typing import Any

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
collectors: Any = importlib.import_module("torchrl.collectors")
data: Any = importlib.import_module("torchrl.data")
envs: Any = importlib.import_module("torchrl.envs")
modules: Any = importlib.import_module("torchrl.modules")
losses: Any = importlib.import_module("torchrl.objectives")
tensordict: Any = importlib.import_module("tensordict")
EnvBase: Any = envs.EnvBase


class Vector(EnvBase):  # pyright: ignore[reportUntypedBaseClass]
    """Our rows as an environment of batch size [B]; rows have reset themselves when asked to."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(device="cpu", batch_size=[rows.work.B])
        B, one = rows.work.B, (rows.work.B, 1)
        self.rows = rows
        observation = data.Unbounded((B, rows.work.features), dtype=torch.float32)
        self.observation_spec = data.Composite(observation=observation, shape=(B,))
        self.action_spec = data.Categorical(ACTIONS, shape=(B,), dtype=torch.int64)
        self.reward_spec = data.Unbounded(one, dtype=torch.float32)
        self.done_spec = data.Categorical(2, shape=one, dtype=torch.bool)

    def _reset(self, tensordict_in: Any = None, **_: Any) -> Any:
        asked = None if tensordict_in is None else tensordict_in.get("_reset", None)
        x = self.rows.reset() if asked is None or bool(asked.all()) else self.rows.state.x
        done = torch.zeros(self.rows.work.B, 1, dtype=torch.bool)
        return tensordict.TensorDict(
            {"observation": torch.from_numpy(x), "done": done, "terminated": done.clone()},
            self.batch_size,
        )

    def _step(self, tensordict_in: Any) -> Any:
        o, r, done = self.rows.step(tensordict_in["action"].numpy())
        ended = torch.from_numpy(done)[:, None]
        return tensordict.TensorDict(
            {
                "observation": torch.from_numpy(o),
                "reward": torch.from_numpy(r)[:, None],
                "done": ended,
                "terminated": ended.clone(),
            },
            self.batch_size,
        )

    def _set_seed(self, seed: Any) -> None:
        pass


def make(work: Work) -> Contestant:
    """Collector, GAE, ClipPPOLoss, Adam."""
    torch.manual_seed(SEED)
    rows = Rows(work)

    def network(outputs: int) -> Any:
        return modules.MLP(
            in_features=work.features,
            out_features=outputs,
            num_cells=[work.width] * work.depth,
            activation_class=torch.nn.Tanh,
        )

    logits = tensordict.nn.TensorDictModule(
        network(ACTIONS), in_keys=["observation"], out_keys=["logits"]
    )
    actor = modules.ProbabilisticActor(
        logits,
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = modules.ValueOperator(network(1), in_keys=["observation"])
    gae = losses.value.GAE(
        gamma=GAMMA, lmbda=LAMBDA, value_network=critic, average_gae=True, shifted=True
    )
    loss = losses.ClipPPOLoss(
        actor, critic, clip_epsilon=CLIP, entropy_coeff=ENTROPY, critic_coeff=VALUE / 2,
        loss_critic_type="l2", clip_value=True, normalize_advantage=False,
    )  # fmt: skip
    adam = torch.optim.Adam(loss.parameters(), lr=LR, eps=EPS)
    collector = collectors.Collector(
        Vector(rows), actor, frames_per_batch=work.B * work.T, total_frames=-1, device="cpu"
    )
    batches = iter(collector)

    def iterate(index: int) -> None:
        for _ in range(index):
            batch = next(batches)
            with torch.no_grad():
                gae(batch)
            found = loss(batch.reshape(-1))
            adam.zero_grad()
            (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), NORM)
            adam.step()

    return counted("TorchRL", work, rows, iterate, lambda: of_modules(actor, critic))
