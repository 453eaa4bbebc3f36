"""VectorEnv: tables as one environment, in which many episodes are acted in arrays.

States are numbered through all tables. An episode begins at the untiled nest of a table and is as
long as the tables are deep, so all episodes of a rollout end together. The share that is left is
part of an observation, so values need no discount: rewards add up to the speed-up of the last nest
over the first one, as a share of the peak.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recurra.nest.actions import Actions
from recurra.nest.agents.policy import Weights, dueling_heads, features
from recurra.nest.measured_table import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Choose = Callable[[Floats, NDArray[np.bool_], np.random.Generator], tuple[Ints, Floats]]
"""(observations [n, ..], legal [n, actions], random) → actions [n], their log-probabilities [n]"""

ARRAYS = ("first", "after", "legal", "shares", "best", "observations")
TRANSITION = ("state", "left", "action", "reward", "after", "after_left")
LOW = np.float32(-1e9)  # value of illegal actions: finite, for a state without a legal action


@dataclass(frozen=True, eq=False)
class VectorEnv:
    """The states of all tables: after[s, a] is the state after an action, s where it is illegal."""

    actions: Actions
    first: Ints
    """[tables]: the untiled nest of each, which is its first state"""
    after: NDArray[np.int32]
    legal: NDArray[np.bool_]
    shares: Floats
    """[states]: GFLOPS as a share of the peak; rewards are differences of them"""
    best: Floats
    """[tables]: the largest share of any state of a table"""
    observations: NDArray[np.float16]
    """[states, loops · 20]"""

    @classmethod
    def of(cls, tables: Sequence[Table]) -> VectorEnv:
        actions = tables[0].actions
        assert all(t.actions == actions for t in tables), "tables of one set of actions"
        first = np.cumsum([0, *(len(t.orders) for t in tables)])[:-1].astype(np.int64)
        return cls(
            actions,
            first,
            np.concatenate([t.after + start for t, start in zip(tables, first, strict=True)]),
            np.concatenate([t.legal for t in tables]),
            np.concatenate([t.gflops / t.peak for t in tables]).astype(np.float32),
            np.array([t.best / t.peak for t in tables], np.float32),
            np.concatenate([features(t.vectors()) for t in tables]),
        )

    def observe(self, states: Ints, left: int | Ints) -> Floats:
        """Return [n, loops · 20 + 1]: features of nests, and the share of the episode left."""
        share = np.broadcast_to(np.float32(left) / np.float32(self.actions.steps), states.shape)
        return np.concatenate(
            [self.observations[states].astype(np.float32), share[:, None]], axis=1
        )

    def rollout(self, starts: Ints, choose: Choose, random: np.random.Generator) -> Trajectories:
        """Act whole episodes from these states."""
        states, rows = starts, list[tuple[np.ndarray, ...]]()
        for left in range(self.actions.steps, 0, -1):
            actions, chances = choose(self.observe(states, left), self.legal[states], random)
            after = self.after[states, actions].astype(np.int64)
            rows.append((states, actions, self.shares[after] - self.shares[states], chances))
            states = after
        stacked = [np.stack(x) for x in zip(*rows, strict=True)]
        return Trajectories(stacked[0], stacked[1], stacked[2], stacked[3], states)

    def draw_starts(self, count: int, random: np.random.Generator) -> Ints:
        """Draw so many untiled nests."""
        return self.first[random.integers(len(self.first), size=count)]

    def greedy_shares(self, weights: Weights) -> Floats:
        """Return [tables]: GFLOPS of the greedy policy's last nest, as a share of the best."""
        ends = self.rollout(self.first, epsilon_greedy(weights, 0.0), np.random.default_rng(0)).last
        return self.shares[ends] / self.best

    @property
    def digest(self) -> str:
        """A checksum of transitions and GFLOPS."""
        return hashlib.sha256(self.after.tobytes() + self.shares.tobytes()).hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Save as files that several processes can map into their memory."""
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))
        (folder / "actions.json").write_text(json.dumps(asdict(self.actions)))


def load_vector_env(folder: Path) -> VectorEnv:
    """Map an environment that was saved: processes share its memory."""
    actions = Actions.from_json(json.loads((folder / "actions.json").read_text()))
    return VectorEnv(actions, *(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS))


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Whole episodes, [steps, episodes]; `last` [episodes] are their final states."""

    states: Ints
    actions: Ints
    rewards: Floats
    chances: Floats
    """Log-probabilities of the actions under the policy that took them"""
    last: Ints

    def left(self) -> Ints:
        """Return [steps, episodes]: the actions left before each."""
        return np.broadcast_to(np.arange(len(self.states), 0, -1)[:, None], self.states.shape)

    def transitions(self, count: int) -> dict[str, np.ndarray]:
        """Return the transitions over n steps, or fewer at the end, named as in TRANSITION."""
        steps = len(self.states)
        ends = np.minimum(np.arange(steps) + count, steps)
        total = np.concatenate([np.zeros_like(self.rewards[:1]), np.cumsum(self.rewards, axis=0)])
        visited = np.concatenate([self.states, self.last[None]])
        after_left = np.broadcast_to((steps - ends)[:, None], self.states.shape)
        rewards = total[ends] - total[:-1]
        found = (self.states, self.left(), self.actions, rewards, visited[ends], after_left)
        return {name: x.reshape(-1) for name, x in zip(TRANSITION, found, strict=True)}


def masked(values: Floats, legal: NDArray[np.bool_]) -> Floats:
    """Return the values, LOW where an action is not legal."""
    return np.where(legal, values, LOW)


def epsilon_greedy(weights: Weights, epsilon: float) -> Choose:
    """Return a policy: the legal action of the highest value, or any with probability ε."""

    def choose(
        observations: Floats, legal: NDArray[np.bool_], random: np.random.Generator
    ) -> tuple[Ints, Floats]:
        greedy = masked(dueling_heads(weights, observations)[1], legal).argmax(axis=1)
        anything = np.where(legal, random.random(legal.shape), -1).argmax(axis=1)
        actions = np.where(random.random(len(observations)) < epsilon, anything, greedy)
        chances = epsilon / np.maximum(legal.sum(axis=1), 1) + (1 - epsilon) * (actions == greedy)
        return actions, np.log(np.maximum(chances, 1e-9)).astype(np.float32)

    return choose


def sample_actions(weights: Weights) -> Choose:
    """Return a policy that samples actions; the network's advantages are logits."""

    def choose(
        observations: Floats, legal: NDArray[np.bool_], random: np.random.Generator
    ) -> tuple[Ints, Floats]:
        logits = masked(dueling_heads(weights, observations)[1], legal)
        logits -= logits.max(axis=1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        # the Gumbel-max trick (Gumbel, 1954)
        actions = (logs + random.gumbel(size=logs.shape)).argmax(axis=1)
        return actions, logs[np.arange(len(observations)), actions].astype(np.float32)

    return choose
