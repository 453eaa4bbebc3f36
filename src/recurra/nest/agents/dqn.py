"""DQN on tables of nests (Mnih et al., 2013; with van Hasselt et al., 2016, Wang et al., 2016).

Many episodes at a time act by ε-greedy values, masked to what is legal; transitions of n steps go
into a replay memory of state numbers; a batch of them is learnt from after every step, by double
Q-learning with a target network. Episodes are as long as the table is deep, and what is left of one
is part of the state, so values need no discount: the rewards of an episode add up to what the last
nest is faster than the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from recurra.nest.agents.policy import Policy, features, initial
from recurra.nest.state import WIDTH
from recurra.nest.table import Episodes, Table

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Settings:
    """What is learnt with. `steps` are those of all episodes together, in rounds of `batch`."""

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


def train(
    tables: Sequence[Table],
    settings: Settings | None = None,
    *,
    tell: Callable[[int, Policy], None] | None = None,
    every: int = 1000,
) -> Policy:
    """A policy for the tables' actions; `tell`s (rounds done, the policy so far).

    The same tables and settings give the same policy.
    """
    s = settings or Settings()
    actions = tables[0].actions
    assert all(t.actions == actions for t in tables), "tables of one set of actions"
    episodes = Episodes(tables, s.batch, s.seed)
    seen = np.concatenate([features(t.vectors()) for t in tables])
    random = np.random.default_rng(s.seed)
    weights: Any = initial(actions.max_loops * WIDTH + 1, len(actions.names), s.hidden, s.seed)
    target, optimiser = weights, _Adam.zero(weights)
    memory = _Memory.empty(s.memory)
    walk = _Walk.begin(episodes)
    for done in range(s.rounds):
        share = min(1.0, done / (s.explore_until * s.rounds))
        epsilon = s.explore[0] + (s.explore[1] - s.explore[0]) * share
        values = _values(weights, _observed(seen, episodes.states, episodes.left, episodes.steps))
        chosen = _epsilon_greedy(
            np.asarray(values), episodes.legal[episodes.states], epsilon, random
        )
        memory.add(walk.step(chosen, s.n_steps))
        if memory.count >= 4 * s.learn_from:
            batch = memory.draw(s.learn_from, random)
            weights, optimiser = _learn(
                weights, target, optimiser, _example(batch, seen, episodes), s.learning_rate
            )
        if done % s.target_every == 0:
            target = weights
        if tell and (done + 1) % every == 0:
            tell(done + 1, _policy(weights, tables[0]))
    return _policy(weights, tables[0])


def _policy(weights: Any, table: Table) -> Policy:
    return Policy({k: np.asarray(v, np.float32) for k, v in weights.items()}, table.actions)


def _observed(
    seen: NDArray[np.float16], states: Ints, left: NDArray[Any], steps: int
) -> NDArray[np.float32]:
    share = (left / steps).astype(np.float32)[:, None]
    return np.concatenate([seen[states].astype(np.float32), share], axis=1)


def _epsilon_greedy(
    values: NDArray[Any], legal: NDArray[np.bool_], epsilon: float, random: np.random.Generator
) -> Ints:
    """The best legal action, or any legal one."""
    greedy = np.where(legal, values, -np.inf).argmax(axis=1)
    anything = np.where(legal, random.random(legal.shape), -1).argmax(axis=1)
    return np.where(random.random(len(values)) < epsilon, anything, greedy)


# What is remembered

_FIELDS = ("state", "left", "action", "reward", "after", "after_left")


class _Memory:
    """Transitions (state, steps left, action, reward, state after, steps left then), a ring."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays, self.count, self.next = arrays, 0, 0
        self.size = len(arrays["state"])

    @classmethod
    def empty(cls, size: int) -> _Memory:
        kinds = {"reward": np.float32}
        return cls({name: np.zeros(size, kinds.get(name, np.int64)) for name in _FIELDS})

    def add(self, new: dict[str, NDArray[Any]]) -> None:
        places = (self.next + np.arange(len(new["state"]))) % self.size
        for name, values in new.items():
            self.arrays[name][places] = values
        self.next = (self.next + len(places)) % self.size
        self.count = min(self.size, self.count + len(places))

    def draw(self, count: int, random: np.random.Generator) -> dict[str, NDArray[Any]]:
        places = random.integers(self.count, size=count)
        return {name: values[places] for name, values in self.arrays.items()}


@dataclass
class _Walk:
    """Episodes under way, and their last few steps, of which transitions are made."""

    episodes: Episodes
    past: list[tuple[Ints, NDArray[Any], Ints, NDArray[np.float32]]]

    @classmethod
    def begin(cls, episodes: Episodes) -> _Walk:
        episodes.reset()
        return cls(episodes, [])

    def step(self, chosen: Ints, n: int) -> dict[str, NDArray[Any]]:
        """One step of all episodes; what has become n steps long, or ended, is given back.

        All episodes begin together and are equally long, so they end together.
        """
        e = self.episodes
        states, left = e.states.copy(), e.left.copy()
        after, rewards, ended = e.step(chosen)
        self.past.append((states, left, chosen, rewards))
        assert ended.all() or not ended.any()
        found: list[dict[str, NDArray[Any]]] = []
        while self.past and (len(self.past) >= n or ended.all()):
            total = np.sum([r for *_, r in self.past], axis=0)
            first, first_left, action, _ = self.past.pop(0)
            rest = dict(reward=total, after=after, after_left=left - 1)
            found.append(dict(state=first, left=first_left, action=action, **rest))
        names = _FIELDS if found else ()
        empty: dict[str, NDArray[Any]] = {name: np.zeros(0, np.int64) for name in _FIELDS}
        return {**empty, **{k: np.concatenate([t[k] for t in found]) for k in names}}


def _example(
    batch: dict[str, NDArray[Any]], seen: NDArray[np.float16], e: Episodes
) -> dict[str, NDArray[Any]]:
    """What the network learns from: observations before and after, what is legal after."""
    return {
        "before": _observed(seen, batch["state"], batch["left"], e.steps),
        "after": _observed(seen, batch["after"], batch["after_left"], e.steps),
        "legal": e.legal[batch["after"]],
        "action": batch["action"],
        "reward": batch["reward"],
        "going": (batch["after_left"] > 0).astype(np.float32),
    }


# What is learnt


def _network(weights: Any, x: Any) -> Any:
    for layer in range(len(weights) // 2 - 2):
        x = jax.nn.relu(x @ weights[f"W{layer}"] + weights[f"b{layer}"])
    advantages = x @ weights["Wa"] + weights["ba"]
    return x @ weights["Wv"] + weights["bv"] + advantages - advantages.mean(axis=1, keepdims=True)


_values = jax.jit(_network)


@dataclass(frozen=True)
class _Adam:
    """Kingma and Ba, 2015."""

    count: Any
    mean: Any
    square: Any

    @classmethod
    def zero(cls, weights: Any) -> _Adam:
        nothing = {k: np.zeros_like(w) for k, w in weights.items()}
        return cls(np.zeros((), np.float32), nothing, nothing)

    def step(self, gradient: Any, weights: Any, rate: float) -> tuple[Any, _Adam]:
        count = self.count + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.mean, gradient)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, self.square, gradient)

        def new(w: Any, m: Any, s: Any) -> Any:
            return w - rate * m / (1 - 0.9**count) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-8)

        return jax.tree.map(new, weights, mean, square), _Adam(count, mean, square)


jax.tree_util.register_dataclass(_Adam, ["count", "mean", "square"], [])


@partial(jax.jit, donate_argnums=())
def _learn(weights: Any, target: Any, adam: _Adam, x: Any, rate: float) -> tuple[Any, _Adam]:
    """Double Q-learning: the network chooses the next action, the target network values it."""
    best = jnp.where(x["legal"], _network(weights, x["after"]), -jnp.inf).argmax(axis=1)
    later = jnp.take_along_axis(_network(target, x["after"]), best[:, None], axis=1)[:, 0]
    wanted = x["reward"] + x["going"] * later

    def loss(w: Any) -> Any:
        given = jnp.take_along_axis(_network(w, x["before"]), x["action"][:, None], axis=1)[:, 0]
        error = jnp.abs(given - wanted)
        return jnp.where(error < 1, 0.5 * error**2, error - 0.5).mean()

    return adam.step(jax.grad(loss)(weights), weights, rate)


def shares_of_best(policy: Policy, tables: Sequence[Table]) -> list[float]:
    """GFLOPS where the policy's episode ends, as shares of the tables' best: the oracle."""
    return [t.evaluate(policy.path(t.problem)[-1]) / t.best for t in tables]
