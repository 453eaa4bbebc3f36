"""A replay buffer with uniform or prioritized sampling (Schaul et al., 2016)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recurra.errors import RecurraError
from recurra.nest.agents.actors import State

Rows = Mapping[str, np.ndarray]  # by name, [rows, ..]


class ReplayBuffer:
    """The last `size` rows of named arrays, with the types and shapes of the first ones.

    Rows without a priority have the priority 1.
    """

    def __init__(self, size: int) -> None:
        self._empty(size)

    def _empty(self, size: int) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.priorities, self.count, self.next = np.zeros(size), 0, 0

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        """The capacity in rows."""
        return len(self.priorities)

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """Views of the rows, in no order."""
        return {name: values[: self.count] for name, values in self.arrays.items()}

    def add(self, new: Rows, priorities: np.ndarray | None = None) -> None:
        """Add rows in place of the oldest."""
        if not self.arrays:
            self.arrays = {k: np.empty((self.size, *x.shape[1:]), x.dtype) for k, x in new.items()}
        some = {name: np.asarray(new[name])[-self.size :] for name in self.arrays}
        count = min((len(x) for x in some.values()), default=0)
        places = (self.next + np.arange(count)) % self.size
        for name, values in some.items():
            self.arrays[name][places] = values
        self.priorities[places] = 1.0 if priorities is None else priorities[-self.size :]
        self.next = (self.next + count) % self.size
        self.count = min(self.size, self.count + count)

    def resize(self, size: int) -> None:
        """Change the capacity; the oldest rows beyond it are dropped."""
        order = (self.next - self.count + np.arange(self.count)) % self.size
        old = {name: values[order] for name, values in self.arrays.items()}
        priorities = self.priorities[order]
        self._empty(size)
        if old:
            self.add(old, priorities)

    def draw(
        self, count: int, random: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Sample uniformly; return places and rows."""
        places = random.integers(self.count, size=count)
        return places, {name: values[places] for name, values in self.arrays.items()}

    def preferred(
        self, count: int, correct: float, random: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Sample by priority; return places and rows.

        The importance `weight` (probability · count)^-correct is scaled to at most 1.
        """
        ends = np.cumsum(self.priorities[: self.count])
        at = np.searchsorted(ends, random.random(count) * ends[-1], side="right")
        places = np.minimum(at, self.count - 1)
        chances = self.priorities[places] / ends[-1]
        weight = (chances * self.count) ** -correct
        found = {name: values[places] for name, values in self.arrays.items()}
        return places, {**found, "weight": (weight / weight.max()).astype(np.float32)}

    def state(self) -> dict[str, object]:
        """Return the state that a checkpoint saves."""
        priorities = self.priorities[: self.count]
        return dict(rows=self.rows, priorities=priorities, size=self.size, next=self.next)

    def restore(self, state: State) -> None:
        """Restore a checkpoint's state. Raises RecurraError if it is that of another buffer."""
        rows = {"rows"} if len(state.get("priorities", ())) else set[str]()  # {} is not saved
        missing = [name for name in ("priorities", "size", "next", *rows) if name not in state]
        if missing:
            raise RecurraError.at_user_line(
                "the checkpoint has another replay buffer",
                facts=f"it has {', '.join(state)}, but no {', no '.join(missing)}",
                hint="begin a new run, without the checkpoint",
            )
        self._empty(state["size"])
        if len(state["priorities"]):
            self.add(state["rows"], state["priorities"])
        self.next = state["next"]
