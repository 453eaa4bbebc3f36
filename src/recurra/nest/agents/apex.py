"""Ape-X DQN (Horgan et al., 2018): actors fill a memory by priority, a learner draws from it.

Each actor explores by an ε of its own, from much to hardly, and tells the error of its own values
with each transition, which is its priority until the learner knows better.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from recurra.nest.agents.actors import ActorTask, Answer, State
from recurra.nest.agents.dqn import double_q, example
from recurra.nest.agents.learning import Distributed, Trainer
from recurra.nest.agents.policy import Weights, heads
from recurra.nest.agents.replay import ReplayBuffer
from recurra.nest.agents.vector_env import TRANSITION, Floats, Ints, World, greedy_or_any, masked
from recurra.support.workers.supervisor import Where


@dataclass(frozen=True)
class ApexSettings:
    """The settings of Ape-X: `rounds` updates, an actor's answer in every `take_every`-th."""

    rounds: int = 20_000
    actors: int = 4
    pool: Where = "processes"
    address: str | None = field(default=None, repr=False)
    """Of the cluster, with the pool ray; by default a Ray of its own on this machine"""
    batch: int = 32
    """Episodes of an answer"""
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
    """An actor: ε-greedy episodes, as transitions with their errors."""

    def __init__(self, world: World, task: ActorTask[ApexSettings]) -> None:
        s = task.settings
        self.world, self.settings = world, s
        self.random = np.random.default_rng(task.seed)
        self.epsilon = s.explore ** (1 + s.spread * task.who / max(1, task.count - 1))

    def work(self, weights: Weights) -> Answer:
        s, world = self.settings, self.world
        starts, choose = world.drawn(s.batch, self.random), greedy_or_any(weights, self.epsilon)
        episodes = world.rollout(starts, choose, self.random)
        found = episodes.transitions(s.n_steps)
        errors = np.abs(_wanted(world, weights, found) - _action_values(world, weights, found))
        return {**found, "error": errors, "rewards": episodes.rewards.sum(axis=0)}


def _values(world: World, weights: Weights, states: Ints, left: Ints) -> Floats:
    value, advantages = heads(weights, world.observed(states, left))
    return value[:, None] + advantages - advantages.mean(axis=1, keepdims=True)


def _action_values(world: World, weights: Weights, answer: Answer) -> Floats:
    found = _values(world, weights, answer["state"], answer["left"])
    return found[np.arange(len(found)), answer["action"]]


def _wanted(world: World, weights: Weights, answer: Answer) -> Floats:
    after = masked(
        _values(world, weights, answer["after"], answer["after_left"]), world.legal[answer["after"]]
    )
    return answer["reward"] + (answer["after_left"] > 0) * after.max(axis=1)


class ApeX(Distributed[ApexSettings]):
    """The learner, its memory and its actors."""

    def __init__(self, world: World, settings: ApexSettings) -> None:
        super().__init__(world, settings, Explorer)
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
            self.weights, self.target, self.adam, example(self.world, batch), s.learning_rate
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
