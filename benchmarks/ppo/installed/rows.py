"""The environment for real peers, rows in NumPy that reset themselves, and what is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Contestant
from benchmarks.ppo import environment
from benchmarks.ppo.workload import SEED, Work


class Rows:
    """B environments; `taken` counts their steps."""

    def __init__(self, work: Work) -> None:
        self.work, self.taken = work, 0
        self.u = np.random.default_rng(SEED).random(work.B, np.float32)
        self.reset()

    def reset(self) -> NDArray[np.float32]:
        """First observations [B, features]."""
        self.state = environment.reset(np, self.u, self.work.features)
        return self.state.x.copy()

    def step(self, a: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        """Next observations [B, features], rewards [B], ends [B]."""
        self.taken += self.work.B
        self.state, reward, done = environment.step(np, self.state, a)
        return self.state.x, reward, done


@dataclass
class Told:
    """What a framework that has its own loop tells: steps of all environments, trained numbers."""

    taken: int = 0
    trained: int = 0


class Taken(Protocol):
    """What counts the steps of all environments."""

    taken: int


def counted(
    name: str, work: Work, rows: Taken, iterate: Callable[[int], Any], parameters: Callable[[], int]
) -> Contestant:
    """A real peer by `iterate(k)`; its answer is what it has done in one iteration."""

    def answer() -> Mapping[str, NDArray[Any]]:
        before = rows.taken
        iterate(1)
        counts = {"env_steps": rows.taken - before, "parameters": parameters()}
        return {k: np.array(n) for k, n in counts.items()}

    return Contestant(name, iterate, answer, same_draws=False)


def of_modules(*modules: Any) -> int:
    """How many numbers PyTorch modules train; shared ones count once."""
    found = {id(p): p.numel() for m in modules for p in m.parameters() if p.requires_grad}
    return sum(found.values())
