"""Values by dynamic programming, and a network that learns them: what a table makes possible.

In a table every way is known, so the best that can still be reached from a state with so many
actions left is computed exactly, backwards (Bellman, 1957). A network is fitted to these values, as
shares of the table's best, with all actions of a state at once; it sees states where its own policy
leads, and where chance does (Ross et al., 2011). DQN learns the same values from its own estimates
of them, in many more steps.
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
from recurra.nest.agents.network import values as valued
from recurra.nest.agents.vector_env import Floats, World, greedy_or_any
from recurra.nest.measured_table import Table


@dataclass(frozen=True)
class FittedSettings:
    """The settings of fitted Q: `rounds` updates, each from `batch` states."""

    rounds: int = 4000
    batch: int = 512
    hidden: tuple[int, ...] = (128, 128)
    learning_rate: float = 1e-3
    walks: int = 64
    """Episodes that are walked through for every update of the states that are seen"""
    walk_every: int = 4
    explore: float = 0.3
    """Of a walk's actions so many are random"""
    memory: int = 20_000
    """States that walks have met last"""
    seed: int = 0


def values(table: Table) -> Floats:
    """[steps + 1, states]: the most GFLOPS, as a share of the table's best, that is reached at the
    end with so many actions left. An action that is not legal changes nothing.
    """
    found = [(table.gflops / table.best).astype(np.float32)]
    for _ in range(table.actions.steps):
        found.append(found[-1][table.after].max(axis=1))
    return np.stack(found)


class Fitted(Learner[FittedSettings]):
    """The states that walks have met, and the best that is reached from all."""

    @classmethod
    def of(cls, tables: Sequence[Table], settings: FittedSettings) -> Self:
        return cls(tables, settings)

    def __init__(self, tables: Sequence[Table], settings: FittedSettings) -> None:
        super().__init__(World.of(tables), settings)
        self.values = np.concatenate([values(t) for t in tables], axis=1)
        self.met = np.zeros((0, 2), np.int64)

    def update(self, done: int) -> Floats:
        s, world, rewards = self.settings, self.world, np.zeros(0, np.float32)
        if done % s.walk_every == 0:
            weights = {k: np.asarray(w) for k, w in self.weights.items()}
            choose = greedy_or_any(weights, s.explore)
            walked = world.rollout(world.drawn(s.walks, self.random), choose, self.random)
            met = np.stack([walked.states.reshape(-1), walked.left().reshape(-1)], axis=1)
            self.met = np.concatenate([self.met, met])[-s.memory :]
            self.steps += walked.states.size
            rewards = walked.rewards.sum(axis=0)
        states, left = self.met[self.random.integers(len(self.met), size=s.batch)].T
        rate = s.learning_rate * (1 - done / s.rounds)
        x = {
            "seen": world.observed(states, left),
            "legal": world.legal[states],
            "wanted": self.values[left[:, None] - 1, world.after[states]],
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
    """Squared errors; those of good actions count most, for only the best is ever taken."""
    best = jnp.where(batch["legal"], batch["wanted"], 0).max(axis=1, keepdims=True)
    weight = batch["legal"] * jnp.exp(-8 * (best - batch["wanted"]))

    def loss(weights: JaxWeights) -> Array:
        return (
            weight * (valued(weights, batch["seen"]) - batch["wanted"]) ** 2
        ).sum() / weight.sum()

    return adam.step(jax.grad(loss)(weights), weights, rate)
