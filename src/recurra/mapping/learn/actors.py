"""Actors that play games for the learner: in its process, in turns, or in supervised processes.

A process that dies or hangs is replaced by another one with other random numbers
(`support/workers/`), on this machine or, through Ray, on a cluster.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from recurra.errors import RecurraError
from recurra.mapping import engine_choice
from recurra.mapping.engine_choice import Engine
from recurra.mapping.learn.acting import FinishedGame, Lanes, reference
from recurra.mapping.learn.network_inputs import AnyArray, GameView, program_features
from recurra.mapping.learn.planning import Forest, PlannedActions, planner
from recurra.mapping.learn.replay import ReplaySegment
from recurra.mapping.learn.settings import AgentSettings
from recurra.mapping.struct_of_arrays import FlatProblem, flat
from recurra.nest.agents.actors import State
from recurra.storage.mapping_problem import Problem
from recurra.support.workers import processes
from recurra.support.workers.cluster import Cluster
from recurra.support.workers.supervisor import Crew, Say, WorkerFactory

ActorSeed = tuple[Path | None, AgentSettings, tuple[int, ...]]
"""The native library, the settings, and the seed of random numbers"""


class ActorsLost(RecurraError):
    """No actor answers any more."""


class ActorRequest(NamedTuple):
    """The weights, the temperature, and the CPU seconds that the answer may take."""

    weights: Mapping[str, AnyArray]
    temperature: float
    seconds: float = float("inf")


class Answer(NamedTuple):
    """Segments, games that ended, and the CPU seconds that this took in another process.

    There are no segments if the time was over first.
    """

    segments: ReplaySegment | None
    ended: list[FinishedGame]
    seconds: float


class GameActor:
    """Lanes of games, and the planner that plays them."""

    def __init__(
        self, flat: FlatProblem, engine: Engine, settings: AgentSettings, seed: tuple[int, ...]
    ) -> None:
        expected = reference(flat, engine)
        self.settings, self.random = settings, np.random.default_rng(seed)
        self.lanes = Lanes(flat, engine, expected, settings.lanes, settings.cells, settings.again)
        self.warmth = np.linspace(settings.coolest, 1.0, settings.lanes, dtype=np.float32)[:, None]
        self.program = program_features(flat)
        self.forest = Forest(flat, settings.cells, expected, self.lanes.games)
        self.plan = planner(settings)

    def work(self, request: ActorRequest) -> Answer:
        begin = time.process_time()
        weights = {k: jax.numpy.asarray(v) for k, v in request.weights.items()}

        def decide(views: GameView) -> PlannedActions:
            key = jax.random.key(int(self.random.integers(2**32)))
            return self.plan(weights, self.program, views, key, temperature, self.forest.number)

        temperature = np.float32(request.temperature) * self.warmth
        segments, ended = self.lanes.play_while(
            lambda: time.process_time() - begin < request.seconds,
            decide,
            self.settings.segment,
            self.random,
        )
        return Answer(segments, ended, 0.0)


class Actors(Protocol):
    """One or several actors, each with one request at a time."""

    def answer(self, request: ActorRequest) -> Answer:
        """Return the next answer, and send this request to its actor."""
        ...

    def state(self) -> dict[str, object]: ...

    def restore(self, state: State) -> None: ...

    def close(self) -> None: ...


class LocalActor:
    """One actor in this process."""

    def __init__(
        self, flat: FlatProblem, engine: Engine, settings: AgentSettings, seed: int
    ) -> None:
        self.actor = GameActor(flat, engine, settings, (seed, 0))

    def answer(self, request: ActorRequest) -> Answer:
        """Answer a request; undo the moves of an incomplete answer, for checkpoints."""
        before = copy.deepcopy(self.state())
        answer = self.actor.work(request)
        if answer.segments is None:
            self.restore(before)
        return answer

    def state(self) -> dict[str, object]:
        return {"lanes": self.actor.lanes.state(), "random": self.actor.random}

    def restore(self, state: State) -> None:
        self.actor.lanes.restore(state["lanes"])
        self.actor.random = state["random"]

    def close(self) -> None:
        pass


class ActorPool:
    """The actors of the settings, each in its own process, on this machine or a cluster."""

    def __init__(
        self, problem: Problem, library: Path | None, settings: AgentSettings, seed: int,
        say: Say | None = None,
    ) -> None:  # fmt: skip
        self.library, self.settings, self.seed, self.started = library, settings, seed, 0
        self.crew = Crew(
            worker_factory(problem, settings),
            settings.actors,
            self._arguments,
            patience=settings.patience,
            say=say,
            lost=ActorsLost,
        )

    def _arguments(self, worker: int) -> ActorSeed:
        self.started += 1
        return self.library, self.settings, (self.seed, self.started)

    def answer(self, request: ActorRequest) -> Answer:
        weights = {k: np.asarray(v) for k, v in request.weights.items()}
        each = request.seconds / self.crew.count
        request = request._replace(weights=weights, seconds=each)
        self.crew.ask_idle(request)
        worker, answer = self.crew.answer()
        self.crew.ask(worker, request)
        return answer

    def state(self) -> dict[str, object]:
        return {"born": self.started}

    def restore(self, state: State) -> None:
        self.started = state["born"]  # for other random numbers than before

    def close(self) -> None:
        self.crew.close()


def worker_factory(problem: Problem, settings: AgentSettings) -> WorkerFactory[Any]:
    """Return where actors run: on a cluster, or in processes of this machine."""
    if settings.pool == "ray":
        return Cluster(start, problem, settings.address, JAX_PLATFORMS="cpu")
    return processes.Processes(start, problem, JAX_PLATFORMS="cpu")


def start(arguments: ActorSeed, problem: Problem) -> Callable[[ActorRequest], Answer]:
    """Create an actor in another process; return the function that answers requests.

    A machine without the native library uses its own engine.
    """
    library, settings, seed = arguments
    actor = GameActor(flat(problem), _engine(library), settings, seed)

    def work(request: ActorRequest) -> Answer:
        begin = time.process_time()
        answer = actor.work(request)
        return answer._replace(seconds=time.process_time() - begin)

    return work


def _engine(library: Path | None) -> Engine:
    if library is None:
        return engine_choice.engine("python")
    return engine_choice.native_engine(library) if library.exists() else engine_choice.engine()
