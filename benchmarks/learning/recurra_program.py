"""Our side: the recipe of `recurra train ppo` as it stands, compiled and run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.learning.settings import Settings, Told
from recurra.rl.recipes import Ppo
from recurra.runtime.host_executor import Step


def recipe(env: str, settings: Settings) -> Ppo:
    """What `recurra train ppo` would be given."""
    return Ppo(
        env=env, iterations=settings.iterations, rows=settings.rows, steps=settings.steps,
        gamma=settings.gamma, epochs=settings.epochs, minibatches=settings.minibatches,
        lr=settings.lr, gae=settings.gae, clip=settings.clip, entropy=settings.entropy,
        value=settings.value, max_norm=settings.max_norm, hidden=(settings.width,) * 2,
    )  # fmt: skip


def train(env: str, seeds: Sequence[int], settings: Settings, told: Told) -> Iterator[int]:
    """Trains once for each seed, compiled once; how many numbers it trained."""
    ctx, bounds = recipe(env, settings).program()
    program = ctx.compile(bounds)
    for seed in seeds:
        found: list[int] = []

        def step(first: int, metrics: Any, seed: int = seed) -> None:
            told(seed, first + len(metrics["mean_return"]))

        def state(made: Step, found: list[int] = found) -> None:
            found[:] = [trained(made.variables)]

        program.run(seed, on_step=step, on_state=state)
        yield found[0]


def trained(variables: Mapping[str, Any]) -> int:
    """How many numbers have a first moment, of what travels from iteration to iteration."""
    moments = [x for name, x in variables.items() if name.endswith("_m_next")]
    return sum(int(np.size(x)) for x in moments)
