"""Actors of a learner: in supervised processes, on a Ray cluster, or in this process.

A request has weights, and an answer arrays: episodes, transitions, gradients. Each actor of a pool
has one request at a time, so none runs far ahead of the learner. A process that dies or does not
answer is replaced by another one with other random numbers (`support/workers/`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from recurra.nest.agents.policy import AnyWeights, Weights
from recurra.nest.agents.vector_env import VectorEnv, load_vector_env
from recurra.support.workers import processes
from recurra.support.workers.cluster import Cluster
from recurra.support.workers.supervisor import Crew, Say, Where, WorkerFactory

Answer = Mapping[str, np.ndarray]
State = Mapping[str, Any]
"""Arrays, numbers, random generators, and mappings of them"""


class LearnerSettings(Protocol):
    """The settings that every learner has."""

    @property
    def rounds(self) -> int: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def seed(self) -> int: ...


class PoolSettings(LearnerSettings, Protocol):
    """The settings of a learner with actors."""

    @property
    def actors(self) -> int: ...
    @property
    def pool(self) -> Where: ...
    @property
    def address(self) -> str | None: ...


Settings = TypeVar("Settings", bound=PoolSettings)

PATIENCE_S = 120.0  # timeout of an answer
QUEUE_S = 600.0  # timeout on a cluster, where an actor may wait for room and for our package
ALONE = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")} | {
    "JAX_PLATFORMS": "cpu"
}


@dataclass(frozen=True)
class ActorTask(Generic[Settings]):
    """The settings, number and random seed of an actor, which `kind(env, task)` makes."""

    kind: Callable[[VectorEnv, ActorTask[Settings]], Actor]
    settings: Settings
    who: int
    count: int
    seed: tuple[int, ...]


class Actor(Protocol):
    """An actor: `work` answers one request."""

    random: np.random.Generator

    def work(self, weights: Weights) -> Answer: ...


def pool(
    kind: Callable[[VectorEnv, ActorTask[Settings]], Actor], env: VectorEnv, settings: Settings
) -> InProcessActors[Settings] | RemoteActors[Settings]:
    """Return the actors of the settings."""
    tasks = [
        ActorTask(kind, settings, who, settings.actors, (settings.seed, who))
        for who in range(settings.actors)
    ]
    if settings.pool == "turns":
        return InProcessActors(env, tasks)
    if settings.pool == "ray":
        cluster = Cluster(start, env, settings.address, **ALONE)
        return RemoteActors(cluster, tasks, patience=QUEUE_S)
    return ActorProcesses(env, tasks)


class InProcessActors(Generic[Settings]):
    """Actors of this process, which answer requests in order when the learner waits."""

    def __init__(self, env: VectorEnv, tasks: Sequence[ActorTask[Settings]]) -> None:
        self.actors = [task.kind(env, task) for task in tasks]
        self.requests: dict[int, Answer] = {}

    def begin(self, weights: AnyWeights) -> None:
        """Send a request to all that are idle."""
        for who in range(len(self.actors)):
            if who not in self.requests:
                self.ask(who, weights)

    def ask(self, who: int, weights: AnyWeights) -> None:
        self.requests[who] = _arrays(weights)

    def answer(self) -> tuple[int, Answer]:
        """Wait for an answer, after which its actor is idle."""
        who = next(iter(self.requests))
        return who, self.actors[who].work(self.requests.pop(who))

    def state(self) -> dict[str, object]:
        order = {str(who): k for k, who in enumerate(self.requests)}
        requests = {str(who): weights for who, weights in self.requests.items()}
        random = {str(who): actor.random for who, actor in enumerate(self.actors)}
        return {"order": order, "asked": requests, "random": random}

    def restore(self, state: State, steps: int) -> None:
        """Restore a state, before the first request, after so many steps of the learner."""
        order: Mapping[str, int] = state.get("order", {})
        self.requests = {int(k): state["asked"][k] for k in sorted(order, key=order.__getitem__)}
        for who, actor in enumerate(self.actors):
            actor.random = state["random"][str(who)]

    def close(self) -> None:
        self.requests.clear()


class RemoteActors(Generic[Settings]):
    """Actors outside of this process, supervised by a crew."""

    def __init__(
        self,
        means: WorkerFactory[Any],
        tasks: Sequence[ActorTask[Settings]],
        *,
        say: Say | None = None,
        patience: float = PATIENCE_S,
    ) -> None:
        self.tasks = tasks
        self.restarts = [-1] * len(tasks)
        self.steps = 0
        self.crew = Crew(means, len(tasks), self._next_task, patience=patience, say=say)

    def _next_task(self, who: int) -> ActorTask[Settings]:
        self.restarts[who] += 1
        task = self.tasks[who]
        return replace(task, seed=(*task.seed, self.steps, self.restarts[who]))

    def begin(self, weights: AnyWeights) -> None:
        self.crew.ask_idle(_arrays(weights))

    def ask(self, who: int, weights: AnyWeights) -> None:
        self.crew.ask(who, _arrays(weights))

    def answer(self) -> tuple[int, Answer]:
        return self.crew.answer()

    def state(self) -> dict[str, object]:
        return {}

    def restore(self, state: State, steps: int) -> None:
        self.steps = steps  # other random numbers than at the beginning

    def close(self) -> None:
        self.crew.close()


class ActorProcesses(RemoteActors[Settings]):
    """Actors that are processes, and map the environment from files."""

    def __init__(
        self,
        env: VectorEnv,
        tasks: Sequence[ActorTask[Settings]],
        *,
        say: Say | None = None,
        patience: float = PATIENCE_S,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="recurra-")
        env.save(Path(self.folder.name))
        means = processes.Processes(start, self.folder.name, **ALONE)
        super().__init__(means, tasks, say=say, patience=patience)

    def close(self) -> None:
        super().close()
        self.folder.cleanup()


def start(task: ActorTask[Settings], shared: str | VectorEnv) -> Callable[[Weights], Answer]:
    """Make an actor in another process; the environment is in a folder, or sent by Ray."""
    env = shared if isinstance(shared, VectorEnv) else load_vector_env(Path(shared))
    return task.kind(env, task).work


def _arrays(weights: AnyWeights) -> dict[str, np.ndarray]:
    return {name: np.asarray(w) for name, w in weights.items()}
