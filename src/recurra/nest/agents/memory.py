"""Memory: transitions to learn from again, all alike or by priority (Schaul et al., 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Transitions = Mapping[str, NDArray[Any]]
FIELDS = ("state", "left", "action", "reward", "after", "after_left")


class Memory:
    """The last `size` transitions (state, actions left, action, reward, state after, left then).

    A transition is drawn with a chance in proportion to its priority; where none are told, all are
    alike.
    """

    def __init__(self, size: int) -> None:
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.zeros(size, np.float32 if name == "reward" else np.int64) for name in FIELDS
        }
        self.priorities = np.zeros(size)
        self.size, self.count, self.next = size, 0, 0

    def add(self, new: Transitions, priorities: NDArray[Any] | None = None) -> None:
        places = (self.next + np.arange(len(new["state"]))) % self.size
        for name in FIELDS:
            self.arrays[name][places] = new[name]
        self.priorities[places] = 1.0 if priorities is None else priorities
        self.next = (self.next + len(places)) % self.size
        self.count = min(self.size, self.count + len(places))

    def draw(self, count: int, random: np.random.Generator) -> tuple[NDArray[Any], dict[str, Any]]:
        """Places, and what is there; all alike."""
        places = random.integers(self.count, size=count)
        return places, {name: values[places] for name, values in self.arrays.items()}

    def preferred(
        self, count: int, correct: float, random: np.random.Generator
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """The same by priority, with a `weight` (chance · count)^-correct, at most 1, that undoes
        what is drawn too often.
        """
        ends = np.cumsum(self.priorities[: self.count])
        at = np.searchsorted(ends, random.random(count) * ends[-1], side="right")
        places = np.minimum(at, self.count - 1)
        chances = self.priorities[places] / ends[-1]
        weight = (chances * self.count) ** -correct
        found: dict[str, Any] = {name: values[places] for name, values in self.arrays.items()}
        return places, {**found, "weight": (weight / weight.max()).astype(np.float32)}

    def state(self) -> dict[str, Any]:
        some = {name: values[: self.count] for name, values in self.arrays.items()}
        return {**some, "priorities": self.priorities[: self.count], "next": self.next}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.count, self.next = len(state["priorities"]), state["next"]
        self.priorities[: self.count] = state["priorities"]
        for name in FIELDS:
            self.arrays[name][: self.count] = state[name]
