"""DQN on tables of nests (Mnih et al., 2013; with van Hasselt et al., 2016, Wang et al., 2016).

Many episodes at a time act ε-greedily among legal actions; their n-step transitions go into a
replay buffer; every round learns from a batch of it, by double Q-learning with a target network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from recurra.nest.agents.actors import State
from recurra.nest.agents.learning import Learner, Trainer
from recurra.nest.agents.network import AdamState, JaxWeights, select_actions, values
from recurra.nest.agents.replay import ReplayBuffer
from recurra.nest.agents.vector_env import Floats, VectorEnv, epsilon_greedy


@dataclass(frozen=True)
class DqnSettings:
    """The settings of DQN. Every `steps` rounds, `batch` episodes of so many steps are acted."""

    rounds: int = 20_000
    batch: int = 64
    """Episodes at a time"""
    hidden: tuple[int, ...] = (256, 256, 256)
    learning_rate: float = 5e-4
    learn_from: int = 256
    """Transitions per update"""
    memory: int = 200_000
    n_steps: int = 3
    target_every: int = 250
    explore: tuple[float, float] = (1.0, 0.05)
    """ε at the beginning and from `explore_until` of all rounds on"""
    explore_until: float = 0.6
    seed: int = 0


class Dqn(Learner[DqnSettings]):
    """A learner that acts and learns in turns."""

    def __init__(self, env: VectorEnv, settings: DqnSettings) -> None:
        super().__init__(env, settings)
        self.target, self.memory = self.weights, ReplayBuffer(settings.memory)

    def update(self, done: int) -> Floats:
        s, env, rewards = self.settings, self.env, np.zeros(0, np.float32)
        if done % s.target_every == 0:
            self.target = self.weights
        if done % env.actions.steps == 0:
            share = min(1.0, done / (s.explore_until * s.rounds))
            epsilon = s.explore[0] + (s.explore[1] - s.explore[0]) * share
            weights = {k: np.asarray(w) for k, w in self.weights.items()}
            choose = epsilon_greedy(weights, epsilon)
            episodes = env.rollout(env.draw_starts(s.batch, self.random), choose, self.random)
            self.memory.add(episodes.transitions(s.n_steps))
            self.steps += episodes.states.size
            rewards = episodes.rewards.sum(axis=0)
        _, batch = self.memory.draw(s.learn_from, self.random)
        self.weights, self.adam, _ = double_q(
            self.weights, self.target, self.adam, training_batch(env, batch), s.learning_rate
        )
        return rewards

    def state(self) -> dict[str, object]:
        return {**super().state(), "target": self.target, "memory": self.memory.state()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.target = state["target"]
        self.memory.restore(state["memory"])


train = Trainer(Dqn.of, DqnSettings, every=1000)


def training_batch(env: VectorEnv, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add observations before and after, and legal actions, to a batch of transitions."""
    return {
        "weight": np.ones(len(batch["state"]), np.float32),
        **batch,
        "before": env.observe(batch["state"], batch["left"]),
        "after": env.observe(batch["after"], batch["after_left"]),
        "legal": env.legal[batch["after"]],
        "going": (batch["after_left"] > 0).astype(np.float32),
    }


@jax.jit
def double_q(
    weights: JaxWeights,
    target: JaxWeights,
    adam: AdamState,
    batch: Mapping[str, Array],
    rate: Array,
) -> tuple[JaxWeights, AdamState, Array]:
    """Update weights and Adam, and return the errors, too.

    The network chooses the next action, and the target network values it.
    """
    best = jnp.where(batch["legal"], values(weights, batch["after"]), -jnp.inf).argmax(axis=1)
    goal = batch["reward"] + batch["going"] * select_actions(values(target, batch["after"]), best)

    def loss(weights: JaxWeights) -> tuple[Array, Array]:
        error = jnp.abs(select_actions(values(weights, batch["before"]), batch["action"]) - goal)
        huber = jnp.where(error < 1, 0.5 * error**2, error - 0.5)
        return (batch["weight"] * huber).mean(), error

    gradient, error = jax.grad(loss, has_aux=True)(weights)
    return *adam.step(gradient, weights, rate), error
