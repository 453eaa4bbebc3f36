"""Actors: what acts while a learner learns; in processes that are watched, or here, in turns.

An actor is told weights and answers with arrays: episodes, transitions, gradients. A pool has so
many of them, each with one request at a time, so none runs far ahead of the learner. A process that
dies, or does not answer, is replaced by another one with other random numbers
(`support/workers/`), on this machine or, through Ray, on those of a cluster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack

import numpy as np

from recurra.nest.agents.policy import AnyWeights, Weights
from recurra.nest.agents.vector_env import World, opened
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

PATIENCE_S = 120.0  # the longest that an answer may take
QUEUE_S = 600.0  # on a cluster, where an actor may have to wait for room, and for our package
ALONE = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")} | {
    "JAX_PLATFORMS": "cpu"
}


@dataclass(frozen=True)
class ActorTask(Generic[Settings]):
    """The task of an actor: its settings, its number among others, and its random numbers."""

    kind: Callable[[World, ActorTask[Settings]], Actor]
    settings: Settings
    who: int
    count: int
    seed: tuple[int, ...]


class Actor(Protocol):
    """Made by `kind(world, task)`."""

    random: np.random.Generator

    def work(self, weights: Weights) -> Answer: ...


class Pool(Protocol):
    """Actors, counted from 0."""

    def begin(self, weights: AnyWeights) -> None:
        """Asks all that are idle."""
        ...

    def ask(self, who: int, weights: AnyWeights) -> None:
        """Asks an idle one."""
        ...

    def answer(self) -> tuple[int, Answer]:
        """Waits for an answer; its actor is idle then."""
        ...

    def state(self) -> dict[str, object]:
        """The state that a checkpoint saves."""
        ...

    def restore(self, state: State, steps: int) -> None:
        """Before the first request; `steps` have been taken before."""
        ...

    def close(self) -> None: ...


def pool(
    kind: Callable[[World, ActorTask[Settings]], Actor], world: World, settings: Settings
) -> Pool:
    """Actors where the settings say."""
    tasks = [
        ActorTask(kind, settings, who, settings.actors, (settings.seed, who))
        for who in range(settings.actors)
    ]
    if settings.pool == "turns":
        return Turns(world, tasks)
    if settings.pool == "ray":
        cluster = Cluster(start, world, settings.address, **ALONE)
        return RemoteActors(cluster, tasks, patience=QUEUE_S)
    return ActorProcesses(world, tasks)


class Turns(Generic[Settings]):
    """Actors of this process: they act when an answer is waited for, first asked first."""

    def __init__(self, world: World, tasks: Sequence[ActorTask[Settings]]) -> None:
        self.actors = [task.kind(world, task) for task in tasks]
        self.asked: dict[int, Answer] = {}

    def begin(self, weights: AnyWeights) -> None:
        for who in range(len(self.actors)):
            if who not in self.asked:
                self.ask(who, weights)

    def ask(self, who: int, weights: AnyWeights) -> None:
        self.asked[who] = _arrays(weights)

    def answer(self) -> tuple[int, Answer]:
        who = next(iter(self.asked))
        return who, self.actors[who].work(self.asked.pop(who))

    def state(self) -> dict[str, object]:
        order = {str(who): k for k, who in enumerate(self.asked)}
        asked = {str(who): weights for who, weights in self.asked.items()}
        random = {str(who): actor.random for who, actor in enumerate(self.actors)}
        return {"order": order, "asked": asked, "random": random}

    def restore(self, state: State, steps: int) -> None:
        asked: Mapping[str, int] = state.get("order", {})
        self.asked = {int(who): state["asked"][who] for who in sorted(asked, key=asked.__getitem__)}
        for who, actor in enumerate(self.actors):
            actor.random = state["random"][str(who)]

    def close(self) -> None:
        self.asked.clear()


class RemoteActors(Generic[Settings]):
    """Actors that do not act in this process, watched by a crew."""

    def __init__(
        self,
        means: WorkerFactory[Any],
        tasks: Sequence[ActorTask[Settings]],
        *,
        say: Say | None = None,
        patience: float = PATIENCE_S,
    ) -> None:
        self.tasks = tasks
        self.lives = [-1] * len(tasks)
        self.steps = 0
        self.crew = Crew(means, len(tasks), self._given, patience=patience, say=say)

    def _given(self, who: int) -> ActorTask[Settings]:
        self.lives[who] += 1
        task = self.tasks[who]
        return replace(task, seed=(*task.seed, self.steps, self.lives[who]))

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


class CrewOptions(TypedDict, total=False):
    """Options of `RemoteActors`."""

    say: Say | None
    patience: float


class ActorProcesses(RemoteActors[Settings]):
    """Actors that are processes; the world lies in files that all of them map."""

    def __init__(
        self, world: World, tasks: Sequence[ActorTask[Settings]], **options: Unpack[CrewOptions]
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="recurra-")
        world.save(Path(self.folder.name))
        super().__init__(processes.Processes(start, self.folder.name, **ALONE), tasks, **options)

    def close(self) -> None:
        super().close()
        self.folder.cleanup()


def start(task: ActorTask[Settings], shared: str | World) -> Callable[[Weights], Answer]:
    """Start an actor elsewhere; the world is in a folder, or is brought by Ray."""
    world = shared if isinstance(shared, World) else opened(Path(shared))
    return task.kind(world, task).work


def _arrays(weights: AnyWeights) -> dict[str, np.ndarray]:
    return {name: np.asarray(w) for name, w in weights.items()}
