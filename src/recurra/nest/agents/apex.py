"""Ape-X DQN (Horgan et al., 2018): actors fill a prioritized replay buffer, a learner samples it.

Each actor has its own ε, from large to small, and sends its temporal-difference error with each
transition, which is the priority until the learner computes another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from recurra.nest.agents.actors import ActorTask, Answer, State
from recurra.nest.agents.dqn import double_q, training_batch
from recurra.nest.agents.learning import Distributed, Trainer
from recurra.nest.agents.policy import Weights, q_values
from recurra.nest.agents.replay import ReplayBuffer
from recurra.nest.agents.vector_env import (
    TRANSITION,
    Floats,
    VectorEnv,
    epsilon_greedy,
    masked,
)
from recurra.support.workers.supervisor import Where


@dataclass(frozen=True)
class ApexSettings:
    """The settings of Ape-X: `rounds` updates, an actor's answer in every `take_every`-th."""

    rounds: int = 20_000
    actors: int = 4
    pool: Where = "processes"
    address: str | None = field(default=None, repr=False)
    """Address of the Ray cluster of the pool ray; by default a new one on this machine"""
    batch: int = 32
    """Episodes per answer"""
    take_every: int = 4
    explore: float = 0.4
    spread: float = 7.0
    """Actor k of n has ε = explore ^ (1 + spread · k / (n - 1))"""
    hidden: tuple[int, ...] = (256, 256, 256)
    learning_rate: float = 5e-4
    learn_from: int = 256
    """Transitions per update"""
    memory: int = 200_000
    prefer: float = 0.6
    """A transition of error δ has the priority (δ + 0.001)^prefer"""
    correct: float = 0.4
    n_steps: int = 3
    target_every: int = 250
    seed: int = 0


class Explorer:
    """An actor of ε-greedy episodes, sent as transitions with their errors."""

    def __init__(self, env: VectorEnv, task: ActorTask[ApexSettings]) -> None:
        s = task.settings
        self.env, self.settings = env, s
        self.random = np.random.default_rng(task.seed)
        self.epsilon = s.explore ** (1 + s.spread * task.who / max(1, task.count - 1))

    def work(self, weights: Weights) -> Answer:
        s, env = self.settings, self.env
        choose = epsilon_greedy(weights, self.epsilon)
        episodes = env.rollout(env.draw_starts(s.batch, self.random), choose, self.random)
        found = episodes.transitions(s.n_steps)
        values = q_values(weights, env.observe(found["state"], found["left"]))
        after = q_values(weights, env.observe(found["after"], found["after_left"]))
        after = masked(after, env.legal[found["after"]]).max(axis=1)
        goal = found["reward"] + (found["after_left"] > 0) * after
        errors = np.abs(goal - values[np.arange(len(values)), found["action"]])
        return {**found, "error": errors, "rewards": episodes.rewards.sum(axis=0)}


class ApeX(Distributed[ApexSettings]):
    """The learner, its replay buffer and its actors."""

    actor = Explorer

    def __init__(self, env: VectorEnv, settings: ApexSettings) -> None:
        super().__init__(env, settings)
        self.target, self.memory = self.weights, ReplayBuffer(settings.memory)

    def update(self, done: int) -> Floats:
        s, rewards = self.settings, np.zeros(0, np.float32)
        if done % s.target_every == 0:
            self.target = self.weights
        if done % s.take_every == 0:
            self.actors.begin(self.weights)
            who, found = self.actors.answer()
            self.actors.ask(who, self.weights)
            some = {name: found[name] for name in TRANSITION}
            self.memory.add(some, self._priority(found["error"]))
            self.steps += len(found["state"])
            rewards = found["rewards"]
        places, batch = self.memory.preferred(s.learn_from, s.correct, self.random)
        self.weights, self.adam, errors = double_q(
            self.weights, self.target, self.adam, training_batch(self.env, batch), s.learning_rate
        )
        self.memory.priorities[places] = self._priority(np.asarray(errors))
        return rewards

    def _priority(self, errors: np.ndarray) -> np.ndarray:
        return (errors + 1e-3) ** self.settings.prefer

    def state(self) -> dict[str, object]:
        return {**super().state(), "target": self.target, "memory": self.memory.state()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.target = state["target"]
        self.memory.restore(state["memory"])


train = Trainer(ApeX.of, ApexSettings, every=1000)
