"""Figure 7: five learners on the same tables, each with the best settings of an equal sweep."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.harness import progress
from benchmarks.looptune.sizes import Sizes
from recurra.nest.agents.learning import LearningPoint
from recurra.nest.agents.vector_env import VectorEnv
from recurra.nest.measured_table import Table

LEARNERS = ("apex", "dqn", "ppo", "a3c", "impala")
HIDDEN = ((128, 128), (256, 256), (256, 256, 256))
POINTS = 40


@dataclass(frozen=True)
class Worlds:
    """Tables that are learned from, that choose among settings, and that are drawn."""

    learned: Sequence[Table]
    choosing: VectorEnv
    drawn: VectorEnv

    def bounds(self) -> dict[str, float]:
        """Between what a policy that is drawn lies."""
        untiled, best = self.drawn.shares[self.drawn.first], self.drawn.best
        return {
            "of_best_untiled": float(np.mean(untiled / best)),
            "reward_oracle": float(np.mean(best - untiled)),
        }


def parted(tables: Sequence[Table]) -> Worlds:
    """A fifth is held out: half of it chooses, the other half is drawn."""
    held_out = max(2, len(tables) // 5)
    return Worlds(
        tables[held_out:], VectorEnv.of(tables[:held_out:2]), VectorEnv.of(tables[1:held_out:2])
    )


def swept(name: str, worlds: Worlds, sizes: Sizes) -> dict[str, Any]:
    """Of a learner: the settings tried, what they reached, and the run of the best of them."""
    trials: list[tuple[float, Any]] = []
    for k in range(sizes.trials):
        settings = tried(name, k, sizes.sweep, sizes.depth)
        reached = run(name, worlds.learned, settings, worlds.choosing)[-1]["of_best"]
        trials.append((reached, settings))
        progress(f"{name}: {k + 1} of {sizes.trials} settings, {reached:.2f} of the best nests")
    best = max(trials, key=lambda trial: trial[0])[1]
    best = replace(best, rounds=rounds(best, sizes.run, sizes.depth))
    points = run(name, worlds.learned, best, worlds.drawn)
    progress(f"{name}: {points[-1]['of_best']:.2f} of the best nests on sizes held out")
    return {
        "settings": str(best),
        "trials": [{"settings": str(s), "of_best": reached} for reached, s in trials],
        "points": points,
    }


def tried(name: str, index: int, steps: int, depth: int) -> Any:
    """The k-th settings of a learner's sweep; the first ones are its own."""
    module = importlib.import_module(f"recurra.nest.agents.{name}")
    settings = module.train.settings()
    if hasattr(settings, "pool"):
        settings = replace(settings, pool="turns")  # a figure can be drawn again
    if index:
        random = np.random.default_rng((2022, index))
        rate = float(10 ** random.uniform(-4, -2.5))
        hidden = HIDDEN[int(random.integers(len(HIDDEN)))]
        settings = replace(settings, learning_rate=rate, hidden=hidden, **explored(name, random))
    return replace(settings, rounds=rounds(settings, steps, depth))


def explored(name: str, random: np.random.Generator) -> Mapping[str, Any]:
    """How much is explored, drawn."""
    share = float(random.random())
    if name == "dqn":
        return {"explore_until": 0.3 + 0.5 * share}
    if name == "apex":
        return {"explore": 0.3 + 0.5 * share}
    return {"entropy": float(10 ** (-3.5 + 2.5 * share))}


def rounds(settings: Any, steps: int, depth: int) -> int:
    """How many updates come with so many actions, all episodes together."""
    each: Mapping[str, float] = {
        "dqn": settings.batch,
        "apex": settings.batch * depth / getattr(settings, "take_every", 1),
        "ppo": settings.batch * depth * getattr(settings, "actors", 1),
        "a3c": settings.batch * depth,
        "impala": settings.batch * depth,
    }
    return max(1, round(steps / each[type(settings).__module__.rpartition(".")[2]]))


def run(
    name: str, learned: Sequence[Table], settings: Any, judged: VectorEnv
) -> list[dict[str, Any]]:
    """The curve of one run: rewards on the way, and what the policy reaches on other tables."""
    points: list[dict[str, Any]] = []

    def tell(point: LearningPoint) -> None:
        reward = None if np.isnan(point.reward) else point.reward
        of_best = float(judged.greedy_shares(point.policy.weights).mean())
        points.append(dict(steps=point.steps, reward=reward, of_best=of_best))

    module = importlib.import_module(f"recurra.nest.agents.{name}")
    module.train(learned, settings, tell=tell, every=max(1, settings.rounds // POINTS))
    return points
