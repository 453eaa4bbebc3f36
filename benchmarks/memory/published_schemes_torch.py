"""CleanRL's scheme in PyTorch: a buffer of observations in f32, learned from at once.

Written from the published algorithm (Huang et al., "CleanRL", JMLR 2022): environments are NumPy's,
`obs = torch.zeros((num_steps, num_envs) + shape)`, the learner computes activations again. The
deviation of advantages is that of the population, not of a sample, which costs the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.harness import Contestant
from benchmarks.memory import workload as w
from benchmarks.memory.workload import SAMPLE, SEED, Work, answers, initial
from recurra.ops.random import uniform

Tensor = torch.Tensor


class Agent(nn.Module):
    """One body, two heads."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        size, inputs = work.side // w.PLACES, w.CHANNELS * w.PLACES**2
        eye, body = nn.Conv2d(3, w.CHANNELS, size, size), nn.Linear(inputs, w.HIDDEN)
        self.body = nn.Sequential(eye, nn.ReLU(), nn.Flatten(), body, nn.Tanh())
        self.actor, self.critic = nn.Linear(w.HIDDEN, w.ACTIONS), nn.Linear(w.HIDDEN, 1)
        layers = (eye, body, self.actor, self.critic)
        params = [p for layer in layers for p in (layer.weight, layer.bias) if p is not None]
        theta = initial(work)
        self.known = dict(zip(theta, params, strict=True))
        with torch.no_grad():
            for name, param in self.known.items():
                param.copy_(_turned(torch.from_numpy(theta[name])))

    def forward(self, x: Tensor) -> tuple[Any, Tensor]:
        """The policy's distribution, values [..], of pictures from 0 to 255."""
        seen = self.body(x / 255.0)
        logits = self.actor(seen)
        return torch.distributions.Categorical(logits=logits), self.critic(seen).squeeze(-1)

    def named(self, of: Callable[[Tensor], Tensor]) -> dict[str, NDArray[Any]]:
        """Something of every parameter, by our names and in our layout."""
        return {k: _turned(of(p).detach()).numpy().copy() for k, p in self.known.items()}


def _turned(x: Tensor) -> Tensor:
    """A Linear's weight is [outputs, inputs] there, [inputs, outputs] here."""
    return x.T if x.dim() == 2 else x


class Trainer:
    """One run: parameters, Adam, environments, buffers [T, B, ..]."""

    def __init__(self, work: Work) -> None:
        self.work, self.agent, self.i = work, Agent(work), 0
        self.adam = torch.optim.Adam(
            self.agent.parameters(), lr=w.LR, betas=(w.BETA1, w.BETA2), eps=w.EPS
        )
        self.game = w.begin(np, np.arange(work.B))
        T, B, shape = work.T, work.B, (3, work.side, work.side)
        self.o, self.a = torch.zeros(T, B, *shape), torch.zeros(T, B, dtype=torch.int64)
        self.log_p, self.r, self.done, self.value = (torch.zeros(T, B) for _ in range(4))

    def picture(self) -> Tensor:
        """What is to be seen now."""
        return torch.Tensor(w.picture(np, self.game, self.work.side))

    def iteration(self) -> tuple[float, float]:
        """Mean reward, and the gradient's norm before it is held."""
        with torch.no_grad():
            last = self.rollout()
            adv, target = self.advantages(last) if not self.work.n else self.returns()
        norm = self.learn(adv, target)
        self.i += 1
        return float(self.r.mean()), norm

    def rollout(self) -> Tensor:
        """Fills the buffers; the value after the last step."""
        x, rows = self.picture(), np.arange(self.work.B)
        for t in range(self.work.T):
            self.o[t] = x
            policy, self.value[t] = self.agent(x)
            u = uniform(np, SEED, SAMPLE, [self.i], rows, t, (self.work.B,), "f32")
            chances = policy.probs.cumsum(-1)[:, :-1]
            a = (chances < torch.from_numpy(u)[:, None]).sum(-1)
            self.a[t], self.log_p[t] = a, policy.log_prob(a)
            self.game, r, done = w.step(np, self.game, a.numpy())
            self.r[t], self.done[t] = torch.from_numpy(r), torch.from_numpy(done).float()
            x = self.picture()
        return self.agent(x)[1]

    def advantages(self, after: Tensor) -> tuple[Tensor, Tensor]:
        """Generalized advantages and what values are to be, [T, B]."""
        adv, following = torch.zeros_like(self.r), torch.zeros(self.work.B)
        for t in reversed(range(self.work.T)):
            on = 1.0 - self.done[t]
            delta = self.r[t] + w.GAMMA * after * on - self.value[t]
            adv[t] = following = delta + w.GAMMA * w.LAMBDA * on * following
            after = self.value[t]
        target = adv + self.value
        return (adv - adv.mean()) / (adv.std(unbiased=False) + w.ADVANTAGE_EPS), target

    def returns(self) -> tuple[Tensor, Tensor]:
        """Discounted sums of the next n rewards, less values; and those sums."""
        T, g = self.work.T, torch.zeros_like(self.r)
        for k in range(min(self.work.n, T)):
            g[: T - k] += w.GAMMA**k * self.r[k:]
        return g - self.value, g

    def learn(self, adv: Tensor, target: Tensor) -> float:
        """One epoch of one minibatch."""
        policy, value = self.agent(self.o.reshape(-1, *self.o.shape[2:]))
        log_p, entropy = policy.log_prob(self.a.reshape(-1)), policy.entropy()
        ratio, adv = (log_p - self.log_p.reshape(-1)).exp(), adv.reshape(-1)
        clipped = ratio.clamp(1 - w.CLIP, 1 + w.CLIP)
        loss = -adv * log_p if self.work.n else torch.max(-adv * ratio, -adv * clipped)
        error = 0.5 * (value - target.reshape(-1)) ** 2
        self.adam.zero_grad()
        (loss + w.VALUE * error - w.ENTROPY * entropy).mean().backward()
        norm = nn.utils.clip_grad_norm_(self.agent.parameters(), w.NORM)
        self.adam.step()
        return float(norm)


def cleanrl(work: Work) -> Contestant:
    """As published; actions are drawn by the bench's own numbers."""
    going: list[Trainer] = []

    def run(index: int) -> NDArray[Any]:
        if not going:
            going.append(Trainer(work))
        return np.array([going[0].iteration()[0] for _ in range(index)])

    def answer() -> Mapping[str, NDArray[Any]]:
        trainer = Trainer(work)
        reward, norm = trainer.iteration()
        m = trainer.agent.named(lambda x: trainer.adam.state[x]["exp_avg"])
        return answers(work, reward, norm, m, trainer.agent.named(lambda x: x))

    return Contestant("CleanRL's scheme", run, answer)
