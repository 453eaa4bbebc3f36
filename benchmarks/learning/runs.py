"""Runs of one program in a process of its own: the episodes of every seed, and counts of work.

in_worker(learn, {"who": "recurra", "env": "CartPole-v1", "seeds": [1, 2], "total": 500_000}, 1)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.learning import episodes
from benchmarks.learning.settings import Settings
from recurra.report.progress import Lines

PROGRAMS = {
    "recurra": "benchmarks.learning.recurra_program",
    "CleanRL's scheme": "benchmarks.learning.cleanrl",
}


@dataclass(frozen=True)
class Run:
    """One seed of one program on one environment."""

    who: str
    env: str
    seed: int
    episodes: Sequence[episodes.Episode]
    steps: int  # of all environments
    parameters: int

    @property
    def score(self) -> float:
        """The mean return of the last hundred episodes."""
        last = [r for _, r in self.episodes[-episodes.LAST :]]
        return sum(last) / len(last)


def learn(who: str, env: str, seeds: Sequence[int], total: int) -> list[dict[str, Any]]:
    """The runs of these seeds, one after the other, as fields of `Run`."""
    settings = Settings(total=total)
    train = importlib.import_module(PROGRAMS[who]).train
    lines = Lines(settings.iterations * len(seeds), f"{env}: {who}", sys.stderr, every=20.0)

    def told(seed: int, done: int) -> None:
        lines.update(settings.iterations * seeds.index(seed) + done, seed=seed)

    runs: list[Run] = []
    name = episodes.recorded(env)
    for seed, parameters in zip(seeds, train(name, seeds, settings, told), strict=True):
        run = Run(who, env, seed, episodes.episodes(), episodes.steps(), parameters)
        print(f"{env}: {who}: seed {seed}: {run.score:.1f}", file=sys.stderr, flush=True)
        runs.append(run)
        episodes.recorded(env)
    return [asdict(run) for run in runs]
