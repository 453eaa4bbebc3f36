"""Values by dynamic programming, and a network that learns them: what a table makes possible.

In a table every way is known, so the best that can still be reached from a state with so many
actions left is computed exactly, backwards (Bellman, 1957). A network is fitted to these values, as
shares of the table's best, with all actions of a state at once; it sees states where its own policy
leads, and where chance does (Ross et al., 2011). DQN learns the same values from its own estimates
of them, in many more steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from recurra.nest.agents.dqn import _Adam as Adam  # pyright: ignore[reportPrivateUsage]
from recurra.nest.agents.dqn import _network as network  # pyright: ignore[reportPrivateUsage]
from recurra.nest.agents.policy import Policy, features, initial
from recurra.nest.state import WIDTH
from recurra.nest.table import Table

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """What is learnt with: `rounds` updates, each from `batch` states."""

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


def train(
    tables: Sequence[Table],
    settings: Settings | None = None,
    *,
    tell: Callable[[int, Policy], None] | None = None,
    every: int = 500,
) -> Policy:
    """A policy for the tables' actions; `tell`s (rounds done, the policy so far).

    The same tables and settings give the same policy.
    """
    s = settings or Settings()
    actions = tables[0].actions
    assert all(t.actions == actions for t in tables), "tables of one set of actions"
    world = _World(tables)
    random = np.random.default_rng(s.seed)
    weights: Any = initial(actions.max_loops * WIDTH + 1, len(actions.names), s.hidden, s.seed)
    adam = Adam.zero(weights)
    met = np.zeros((0, 2), np.int64)
    for done in range(s.rounds):
        if done % s.walk_every == 0:
            met = np.concatenate([met, world.walked(weights, s, random)])[-s.memory :]
        states, left = met[random.integers(len(met), size=s.batch)].T
        rate = s.learning_rate * (1 - done / s.rounds)
        weights, adam = _fit(weights, adam, world.example(states, left), rate)
        if tell and (done + 1) % every == 0:
            tell(done + 1, _policy(weights, tables[0]))
    return _policy(weights, tables[0])


class _World:
    """All tables as one, states counted through."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.steps = tables[0].actions.steps
        first = np.cumsum([0, *(len(t.orders) for t in tables)])
        self.starts = first[:-1]
        pairs = list(zip(tables, self.starts, strict=True))
        self.after = np.concatenate([t.after + start for t, start in pairs]).astype(np.int64)
        self.legal = np.concatenate([t.legal for t in tables])
        self.values = np.concatenate([values(t) for t in tables], axis=1)
        self.seen = np.concatenate([features(t.vectors()) for t in tables])

    def observed(self, states: NDArray[np.int64], left: NDArray[np.int64]) -> Floats:
        share = (left / self.steps).astype(np.float32)[:, None]
        return np.concatenate([self.seen[states].astype(np.float32), share], axis=1)

    def walked(self, weights: Any, s: Settings, random: np.random.Generator) -> NDArray[np.int64]:
        """[states met, 2]: (state, actions left) on walks from untiled nests."""
        states, met = self.starts[random.integers(len(self.starts), size=s.walks)], []
        for left in range(self.steps, 0, -1):
            lefts = np.full(s.walks, left)
            met.append(np.stack([states, lefts], axis=1))
            legal = self.legal[states]
            given = np.asarray(_given(weights, self.observed(states, lefts)))
            anything = np.where(legal, random.random(legal.shape), -1).argmax(axis=1)
            greedy = np.where(legal, given, -np.inf).argmax(axis=1)
            chosen = np.where(random.random(s.walks) < s.explore, anything, greedy)
            states = self.after[states, chosen]
        return np.concatenate(met)

    def example(self, states: NDArray[np.int64], left: NDArray[np.int64]) -> dict[str, Any]:
        return {
            "seen": self.observed(states, left),
            "legal": self.legal[states],
            "wanted": self.values[left[:, None] - 1, self.after[states]],
        }


_given = jax.jit(network)


@jax.jit
def _fit(weights: Any, adam: Adam, x: Any, rate: Any) -> tuple[Any, Adam]:
    """Squared errors; those of good actions count most, for only the best is ever taken."""
    best = jnp.where(x["legal"], x["wanted"], 0).max(axis=1, keepdims=True)
    weight = x["legal"] * jnp.exp(-8 * (best - x["wanted"]))

    def loss(w: Any) -> Any:
        return (weight * (network(w, x["seen"]) - x["wanted"]) ** 2).sum() / weight.sum()

    return adam.step(jax.grad(loss)(weights), weights, rate)


def _policy(weights: Any, table: Table) -> Policy:
    return Policy({k: np.asarray(v, np.float32) for k, v in weights.items()}, table.actions)
