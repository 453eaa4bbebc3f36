"""CleanRL's scheme in PyTorch: eager steps, autograd over the whole batch; its cached variant.

Written from the published algorithm (Huang et al., "CleanRL", JMLR 2022; "The 37 implementation
details of PPO", 2022), logged numbers included. What differs: the environment is ours, in Torch, so
that no array crosses to NumPy; the deviation of advantages is that of the population, not of a
sample, which costs the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.harness import Contestant
from benchmarks.ppo import environment
from benchmarks.ppo.workload import (
    ADVANTAGE_EPS,
    BETA1,
    BETA2,
    CLIP,
    ENTROPY,
    EPS,
    GAMMA,
    LAMBDA,
    LR,
    NETS,
    NORM,
    RESET,
    SAMPLE,
    SEED,
    VALUE,
    Net,
    Work,
    answers,
    initial,
)
from recurra.ops.random import uniform

Tensor = torch.Tensor
Sample = Callable[[Any, int, int], Tensor]  # (distribution, i, t) → actions [B]


class Environment:
    """The trivial environment on tensors; its state goes on from iteration to iteration."""

    def __init__(self, work: Work, u: NDArray[np.float32]) -> None:
        push, start = environment.tables(work.features)
        first = environment.reset(np, u, work.features)
        self.push, self.start = torch.from_numpy(push.copy()), torch.from_numpy(start.copy())
        self.x, self.n, self.ends = (torch.from_numpy(np.array(v)) for v in first)

    def step(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Next observations [B, features], rewards [B], ends [B]."""
        x = environment.KEPT * self.x + self.push[a]
        reward = x[:, : environment.REWARDED].mean(1)
        done = self.n + 1 >= self.ends
        self.x = torch.where(done[:, None], self.start, x)
        self.n = torch.where(done, 0, self.n + 1).to(torch.int32)
        return self.x, reward, done


class Agent(nn.Module):
    """Separate actor and critic."""

    def __init__(self, work: Work, seed: int) -> None:
        super().__init__()
        theta = initial(work, seed)
        self.actor, self.critic = (_network(work, net, theta) for net in NETS)

    def forward(self, x: Tensor) -> tuple[Any, Tensor]:
        """The policy's distribution, values [..]."""
        logits = self.actor(x)
        return torch.distributions.Categorical(logits=logits), self.critic(x).squeeze(-1)


def _network(work: Work, net: Net, theta: Mapping[str, NDArray[Any]]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, (inputs, outputs) in enumerate(work.layers(net), 1):
        linear = nn.Linear(inputs, outputs)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(theta[f"{net}_W{k}"].T.copy()))
            linear.bias.copy_(torch.from_numpy(theta[f"{net}_b{k}"]))
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def named(agent: Agent, of: Callable[[Tensor], Tensor]) -> dict[str, NDArray[Any]]:
    """Something of every parameter, by our names and in our layout."""
    found: dict[str, NDArray[Any]] = {}
    for net in NETS:
        linears = [x for x in getattr(agent, net) if isinstance(x, nn.Linear)]
        for k, x in enumerate(linears, 1):
            found[f"{net}_W{k}"] = of(x.weight).detach().numpy().T.copy()
            found[f"{net}_b{k}"] = of(x.bias).detach().numpy().copy()
    return found


def torch_draw(distribution: Any, index: int, step: int) -> Tensor:
    """The usual draw."""
    return distribution.sample()


def counted(seed: int, B: int) -> Sample:
    """The draws that all exact programs share."""
    rows = np.arange(B)

    def sample(distribution: Any, index: int, step: int) -> Tensor:
        u = torch.from_numpy(uniform(np, seed, SAMPLE, [index], rows, step, (B,), "f32"))
        return (distribution.probs.detach().cumsum(-1)[:, :-1] < u[:, None]).sum(-1)

    return sample


class Trainer:
    """One run: parameters, Adam, environments, buffers [T, B, ..]."""

    def __init__(self, work: Work, seed: int, sample: Sample, cached: bool) -> None:
        self.work, self.sample, self.cached = work, sample, cached
        self.agent, self.i = Agent(work, seed), 0
        self.adam = torch.optim.Adam(self.agent.parameters(), lr=LR, betas=(BETA1, BETA2), eps=EPS)
        u = uniform(np, seed, RESET, [0], np.arange(work.B), 0, (work.B,), "f32")
        self.environment = Environment(work, u)
        T, B = work.T, work.B
        self.o, self.a = torch.zeros(T, B, work.features), torch.zeros(T, B, dtype=torch.int64)
        self.log_p, self.r, self.done, self.value = (torch.zeros(T, B) for _ in range(4))
        self.indices = np.arange(T * B)
        self.random = np.random.default_rng(seed)

    def iteration(self) -> tuple[float, float]:
        """Mean reward, and the gradient's norm before it is held."""
        with torch.set_grad_enabled(self.cached):
            graphs = self.rollout()
        with torch.no_grad():
            adv = self.advantages()
        norm = self.learn(adv, graphs)
        self.i += 1
        return float(self.r.mean()), norm

    def rollout(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Fills the buffers; with `cached`, ln p, entropies and values with their graphs."""
        graphs: list[tuple[Tensor, Tensor, Tensor]] = []
        x = self.environment.x
        for t in range(self.work.T):
            self.o[t] = x
            policy, value = self.agent(x)
            a = self.sample(policy, self.i, t)
            log_p = policy.log_prob(a)
            if self.cached:
                graphs.append((log_p, policy.entropy(), value))
            self.a[t], self.log_p[t], self.value[t] = a, log_p.detach(), value.detach()
            x, self.r[t], self.done[t] = self.environment.step(a)
        return graphs

    def advantages(self) -> Tensor:
        """Generalized advantages [T, B]."""
        adv, following = torch.zeros_like(self.r), torch.zeros(self.work.B)
        after = self.agent(self.environment.x)[1]
        for t in reversed(range(self.work.T)):
            on = 1.0 - self.done[t]
            delta = self.r[t] + GAMMA * after * on - self.value[t]
            adv[t] = following = delta + GAMMA * LAMBDA * on * following
            after = self.value[t]
        return adv

    def learn(self, adv: Tensor, graphs: list[tuple[Tensor, Tensor, Tensor]]) -> float:
        """One epoch of one minibatch."""
        flat = [x.reshape(-1) for x in (self.log_p, adv, adv + self.value, self.value)]
        if self.cached:  # nothing is computed again, so nothing can be shuffled
            old_log_p, adv, target, old_value = flat
            log_p, entropy, value = (torch.cat(x) for x in zip(*graphs, strict=True))
        else:
            self.random.shuffle(self.indices)
            chosen = torch.from_numpy(self.indices)
            old_log_p, adv, target, old_value = (x[chosen] for x in flat)
            policy, value = self.agent(self.o.reshape(-1, self.work.features)[chosen])
            log_p, entropy = policy.log_prob(self.a.reshape(-1)[chosen]), policy.entropy()
        log_ratio = log_p - old_log_p
        ratio = log_ratio.exp()
        with torch.no_grad():  # what the scheme logs
            _ = ((ratio - 1) - log_ratio).mean(), ((ratio - 1).abs() > CLIP).float().mean().item()
        adv = (adv - adv.mean()) / (adv.std(unbiased=False) + ADVANTAGE_EPS)
        policy_loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        near = old_value + (value - old_value).clamp(-CLIP, CLIP)
        squares = torch.max((value - target) ** 2, (near - target) ** 2)
        loss = policy_loss - ENTROPY * entropy.mean() + VALUE * 0.5 * squares.mean()
        self.adam.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.agent.parameters(), NORM)
        self.adam.step()
        y = flat[2].numpy()
        _ = 1 - np.var(y - flat[3].numpy()) / np.var(y)  # logged as well
        return float(norm)


def _scheme(name: str, work: Work, seed: int, cached: bool) -> Contestant:
    going: list[Trainer] = []

    def run(index: int) -> NDArray[Any]:
        if not going:
            going.append(Trainer(work, seed, torch_draw, cached))
        return np.array([going[0].iteration()[0] for _ in range(index)])

    def answer() -> Mapping[str, NDArray[Any]]:
        trainer = Trainer(work, seed, counted(seed, work.B), cached)
        reward, norm = trainer.iteration()
        m = named(trainer.agent, lambda x: trainer.adam.state[x]["exp_avg"])
        return answers(work, reward, norm, m, named(trainer.agent, lambda x: x))

    return Contestant(name, run, answer)


def cleanrl(work: Work, seed: int = SEED) -> Contestant:
    """As published: minibatch indices are shuffled, the learner computes activations again."""
    return _scheme("CleanRL's scheme", work, seed, cached=False)


def cleanrl_cached(work: Work, seed: int = SEED) -> Contestant:
    """Acting keeps the graphs of its T steps (TEMPO, figure 22); nothing is shuffled."""
    return _scheme("CleanRL's scheme, cached", work, seed, cached=True)
