"""Fitted Q: a network that learns the values of dynamic programming on tables.

A table has all transitions, so the best that can still be reached from a state with so many actions
left is computed exactly, backwards (Bellman, 1957). A network is fitted to these values, as shares
of the table's best, with all actions of a state at once, at states of its own policy's episodes and
of random ones (Ross et al., 2011). DQN learns the same values by bootstrapping, in many more steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from recurra.nest.agents.actors import State
from recurra.nest.agents.learning import Learner, Trainer
from recurra.nest.agents.network import AdamState, JaxWeights
from recurra.nest.agents.network import values as q_values
from recurra.nest.agents.vector_env import Floats, VectorEnv, epsilon_greedy
from recurra.nest.measured_table import Table


@dataclass(frozen=True)
class FittedSettings:
    """The settings of fitted Q: `rounds` updates, each from `batch` states."""

    rounds: int = 4000
    batch: int = 512
    hidden: tuple[int, ...] = (128, 128)
    learning_rate: float = 1e-3
    walks: int = 64
    """Episodes that are acted at a time"""
    walk_every: int = 4
    explore: float = 0.3
    """Share of random actions"""
    memory: int = 20_000
    """Latest states that are learned from"""
    seed: int = 0


def values(table: Table) -> Floats:
    """Return [steps + 1, states]: the largest share of the best GFLOPS within so many actions.

    An action that is not legal changes nothing.
    """
    rows = [(table.gflops / table.best).astype(np.float32)]
    for _ in range(table.actions.steps):
        rows.append(rows[-1][table.after].max(axis=1))
    return np.stack(rows)


class Fitted(Learner[FittedSettings]):
    """The latest states of episodes, and the values of all states."""

    @classmethod
    def of(cls, tables: Sequence[Table], settings: FittedSettings) -> Self:
        return cls(tables, settings)

    def __init__(self, tables: Sequence[Table], settings: FittedSettings) -> None:
        super().__init__(VectorEnv.of(tables), settings)
        self.values = np.concatenate([values(t) for t in tables], axis=1)
        self.met = np.zeros((0, 2), np.int64)

    def update(self, done: int) -> Floats:
        s, env, rewards = self.settings, self.env, np.zeros(0, np.float32)
        if done % s.walk_every == 0:
            weights = {k: np.asarray(w) for k, w in self.weights.items()}
            choose = epsilon_greedy(weights, s.explore)
            episodes = env.rollout(env.draw_starts(s.walks, self.random), choose, self.random)
            met = np.stack([episodes.states.reshape(-1), episodes.left().reshape(-1)], axis=1)
            self.met = np.concatenate([self.met, met])[-s.memory :]
            self.steps += episodes.states.size
            rewards = episodes.rewards.sum(axis=0)
        states, left = self.met[self.random.integers(len(self.met), size=s.batch)].T
        rate = s.learning_rate * (1 - done / s.rounds)
        x = {
            "observations": env.observe(states, left),
            "legal": env.legal[states],
            "goals": self.values[left[:, None] - 1, env.after[states]],
        }
        self.weights, self.adam = _fit(self.weights, self.adam, x, rate)
        return rewards

    def state(self) -> dict[str, object]:
        return {**super().state(), "met": self.met}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.met = state["met"]


train = Trainer(Fitted.of, FittedSettings, every=500)


@jax.jit
def _fit(
    weights: JaxWeights, adam: AdamState, batch: Mapping[str, Array], rate: Array
) -> tuple[JaxWeights, AdamState]:
    """Update by squared errors, weighted for good actions, since only the best is ever taken."""
    best = jnp.where(batch["legal"], batch["goals"], 0).max(axis=1, keepdims=True)
    weight = batch["legal"] * jnp.exp(-8 * (best - batch["goals"]))

    def loss(weights: JaxWeights) -> Array:
        return (
            weight * (q_values(weights, batch["observations"]) - batch["goals"]) ** 2
        ).sum() / weight.sum()

    return adam.step(jax.grad(loss)(weights), weights, rate)
