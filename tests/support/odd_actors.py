"""Actors that do not do what they should; their processes import this file."""

from __future__ import annotations

import os
import signal
from typing import Any

from recurra.nest.agents.sampling_actor import SamplingActor


class Broken(SamplingActor):
    def work(self, weights: Any) -> Any:
        raise ValueError("no more walks")


class Dying(SamplingActor):
    def work(self, weights: Any) -> Any:
        os._exit(3)


class Hanging(SamplingActor):
    """Answers once; then never again, in the first of its lives."""

    def __init__(self, world: Any, task: Any) -> None:
        super().__init__(world, task)
        self.life, self.answers = task.seed[-1], 0

    def work(self, weights: Any) -> Any:
        self.answers += 1
        if self.answers > 1 and self.life == 0:
            signal.pause()
        return super().work(weights)
