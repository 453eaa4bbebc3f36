"""Contestants that do next to nothing, for the processes of the PPO bench."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.harness import Contestant
from benchmarks.ppo.workload import Work

TINY = Work(B=4, T=6, width=4, depth=1, features=5)
SPENT: list[np.ndarray] = []


def steady(work: Work) -> Contestant:
    """Holds a megabyte for each environment."""

    def run(k: int) -> None:
        SPENT.append(np.ones((work.B, 125_000)))

    return Contestant("steady", run, lambda: {"reward": np.array([work.T])})


def other(work: Work) -> Contestant:
    return replace(steady(work), name="other")


def wrong(work: Work) -> Contestant:
    return replace(steady(work), name="wrong", answer=lambda: {"reward": np.array([work.T + 1])})


def broken(work: Work) -> Contestant:
    print("what a framework says")
    raise RuntimeError("it cannot be made")


def tired(work: Work) -> Contestant:
    """Gives up at its fifth run: the first ones compile and gauge."""
    runs: list[int] = []

    def run(k: int) -> None:
        runs.append(k)
        if len(runs) == 5:
            raise SystemExit(3)

    return replace(steady(work), name="tired", run=run)
