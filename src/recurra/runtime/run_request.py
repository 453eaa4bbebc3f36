"""The arguments of one run of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from recurra.runtime.host_executor import Resume, Step
from recurra.window import Executor

OnStep = Callable[[int, dict[str, np.ndarray]], None]


@dataclass(frozen=True)
class RunRequest:
    """The arguments of one run of a program."""

    seed: int = 0
    """The seed of all draws."""
    inputs: Mapping[str, object] = field(default_factory=dict[str, object])
    """The value of every rc.input, by name, [*dims of its domain, *shape]."""
    resume: Resume | str | Path | None = None
    """The folder whose newest checkpoint is resumed, or the (time, variables) of a step."""
    on_step: OnStep | None = None
    """Called after every launch of the outermost loop with the metrics that it made."""
    on_state: Callable[[Step], None] | None = None
    """Called with every step that has the variables carried along the outermost loop."""
    native: bool = False
    """Results are arrays of the backend, not copied."""
    overwrite: bool = False
    """A new run replaces one in the folders that it saves and records in."""
    window: int | Executor | None = None
    """The threads that run launches side by side, or an executor; None: one after the other."""
    folder: Path | None = None
    """The folder to which exported parts of the program are also written at the end."""

    def tell(self, first: int, metrics: dict[str, np.ndarray]) -> None:
        """Call `on_step` with the metrics from point `first` on."""
        if self.on_step is not None:
            self.on_step(first, metrics)

    @property
    def is_watched(self) -> bool:
        """Does the caller observe single launches, or take part in them?"""
        observers = (self.on_step, self.resume, self.on_state, self.window)
        return any(x is not None for x in observers)
