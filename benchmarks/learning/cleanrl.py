"""CleanRL's PPO for classic control, in PyTorch: the scheme that our recipe is compared with.

Written from the published algorithm and hyper-parameters (Huang et al., "CleanRL", JMLR 2022; "The
37 implementation details of PPO", 2022). Advantages are normalized by the deviation of a sample,
an episode that is cut off ends like any other, the learning rate falls to 0 in equal steps. What
it logs for people (KL, clip fractions, explained variance) is left out: it changes nothing learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

from benchmarks.learning.settings import Settings, Told

Tensor = torch.Tensor


class Agent(nn.Module):
    """Actor and critic apart, two hidden layers of tanh each, orthogonal weights."""

    def __init__(self, features: int, actions: int, width: int) -> None:
        super().__init__()
        self.actor = _network(features, width, actions, 0.01)
        self.critic = _network(features, width, 1, 1.0)

    def forward(self, o: Tensor) -> tuple[Any, Tensor]:
        """The policy's distribution, values [..]."""
        policy = torch.distributions.Categorical(logits=self.actor(o), validate_args=False)
        return policy, self.critic(o).squeeze(-1)


def _network(features: int, width: int, outputs: int, gain: float) -> nn.Sequential:
    def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
        linear = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
        return linear

    first, second = layer(features, width, 2**0.5), layer(width, width, 2**0.5)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), layer(width, outputs, gain))


class Trainer:
    """One run of training; buffers are [T, B, ..]."""

    def __init__(self, env: str, seed: int, settings: Settings) -> None:
        torch.manual_seed(seed)
        self.random = np.random.default_rng(seed)
        self.s = settings
        same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.envs = gymnasium.make_vec(
            env, num_envs=settings.rows, vectorization_mode="sync", vector_kwargs=same_step
        )
        shown: Any = self.envs.single_observation_space
        taken: Any = self.envs.single_action_space
        self.agent = Agent(shown.shape[0], int(taken.n), settings.width)
        self.adam = torch.optim.Adam(self.agent.parameters(), lr=settings.lr, eps=settings.eps)
        T, B = settings.steps, settings.rows
        self.o, self.a = torch.zeros(T, B, *shown.shape), torch.zeros(T, B, dtype=torch.int64)
        self.log_p, self.r, self.done, self.value = (torch.zeros(T, B) for _ in range(4))
        self.now = torch.from_numpy(np.float32(self.envs.reset(seed=seed)[0]))

    def iterations(self, told: Callable[[int], Any]) -> None:
        """All of them; each is told."""
        for i in range(self.s.iterations):
            self.adam.param_groups[0]["lr"] = self.s.lr * (1.0 - i / self.s.iterations)
            with torch.no_grad():
                self.act()
                adv = self.advantages()
            for _ in range(self.s.epochs):
                order = torch.from_numpy(self.random.permutation(self.s.samples))
                for chosen in order.chunk(self.s.minibatches):
                    self.learn(chosen, adv.reshape(-1))
            told(i + 1)

    def act(self) -> None:
        """Fills the buffers."""
        for t in range(self.s.steps):
            policy, value = self.agent(self.now)
            a = policy.sample()
            self.o[t], self.a[t], self.value[t] = self.now, a, value
            self.log_p[t] = policy.log_prob(a)
            o, r, term, trunc, _ = self.envs.step(a.numpy())
            self.now = torch.from_numpy(np.float32(o))
            self.r[t] = torch.from_numpy(np.float32(r))
            self.done[t] = torch.from_numpy(np.float32(term | trunc))

    def advantages(self) -> Tensor:
        """Generalized advantages [T, B]."""
        adv, following = torch.zeros_like(self.r), torch.zeros(self.s.rows)
        after = self.agent(self.now)[1]
        for t in reversed(range(self.s.steps)):
            on = 1.0 - self.done[t]
            delta = self.r[t] + self.s.gamma * after * on - self.value[t]
            adv[t] = following = delta + self.s.gamma * self.s.gae * on * following
            after = self.value[t]
        return adv

    def learn(self, chosen: Tensor, every_adv: Tensor) -> None:
        """One step of Adam on the samples of a minibatch."""
        o, a = self.o.flatten(0, 1)[chosen], self.a.reshape(-1)[chosen]
        old_log_p, old_value = (x.reshape(-1)[chosen] for x in (self.log_p, self.value))
        adv = every_adv[chosen]
        target = adv + old_value
        policy, value = self.agent(o)
        ratio = (policy.log_prob(a) - old_log_p).exp()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        clip = self.s.clip
        policy_loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - clip, 1 + clip)).mean()
        near = old_value + (value - old_value).clamp(-clip, clip)
        squares = torch.max((value - target) ** 2, (near - target) ** 2).mean()
        loss = policy_loss - self.s.entropy * policy.entropy().mean() + self.s.value * 0.5 * squares
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), self.s.max_norm)
        self.adam.step()


def train(env: str, seeds: Sequence[int], settings: Settings, told: Told) -> Iterator[int]:
    """Trains once for each seed; how many numbers it trained."""
    torch.set_num_threads(1)
    for seed in seeds:
        trainer = Trainer(env, seed, settings)
        trainer.iterations(partial(told, seed))
        yield sum(p.numel() for p in trainer.agent.parameters())
