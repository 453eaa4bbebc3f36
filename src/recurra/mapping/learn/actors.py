"""Actors, who play while the learner learns: here, in turns, or in processes that are watched.

A process that dies, or does not answer, is replaced by another one with other random numbers
(`support/workers/`), on this machine or, through Ray, on those of a cluster.
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
from recurra.support.workers.supervisor import Crew, Means, Say

ActorSeed = tuple[Path | None, AgentSettings, tuple[int, ...]]
"""The native library, the settings, what random numbers begin with"""


class ActorsLost(RecurraError):
    """No actor answers any more."""


class ActorRequest(NamedTuple):
    """Weights, the temperature, and the CPU seconds that the answer may take."""

    weights: Mapping[str, AnyArray]
    heat: float
    seconds: float = float("inf")


class Answer(NamedTuple):
    """Pieces, games that ended, CPU seconds that this took in another process.

    There are no pieces where the time was over first.
    """

    pieces: ReplaySegment | None
    ended: list[FinishedGame]
    seconds: float


class GameActor:
    """Lanes of games, and how they are decided."""

    def __init__(
        self, flat: FlatProblem, engine: Engine, settings: AgentSettings, seed: tuple[int, ...]
    ) -> None:
        expected = reference(flat, engine)
        self.settings, self.random = settings, np.random.default_rng(seed)
        self.lanes = Lanes(flat, engine, expected, settings.lanes, settings.cells, settings.again)
        self.warmth = np.linspace(settings.coolest, 1.0, settings.lanes, dtype=np.float32)[:, None]
        self.near = program_features(flat)
        self.forest = Forest(flat, settings.cells, expected, self.lanes.games)
        self.plan = planner(settings)

    def work(self, request: ActorRequest) -> Answer:
        begin = time.process_time()
        weights = {k: jax.numpy.asarray(v) for k, v in request.weights.items()}

        def decide(seen: GameView) -> PlannedActions:
            key = jax.random.key(int(self.random.integers(2**32)))
            return self.plan(weights, self.near, seen, key, heat, self.forest.number)

        heat = np.float32(request.heat) * self.warmth
        pieces, ended = self.lanes.play_while(
            lambda: time.process_time() - begin < request.seconds,
            decide,
            self.settings.segment,
            self.random,
        )
        return Answer(pieces, ended, 0.0)


class Actors(Protocol):
    """One request at a time for each."""

    def answer(self, request: ActorRequest) -> Answer:
        """The next answer; whoever gave it is asked again with this request."""
        ...

    def state(self) -> dict[str, object]: ...

    def restore(self, state: State) -> None: ...

    def close(self) -> None: ...


class LocalActor:
    """One actor, in this process."""

    def __init__(
        self, flat: FlatProblem, engine: Engine, settings: AgentSettings, seed: int
    ) -> None:
        self.actor = GameActor(flat, engine, settings, (seed, 0))

    def answer(self, request: ActorRequest) -> Answer:
        """Answer a request; a checkpoint keeps nothing of games that were played in part."""
        before = copy.deepcopy(self.state())
        answer = self.actor.work(request)
        if answer.pieces is None:
            self.restore(before)
        return answer

    def state(self) -> dict[str, object]:
        return {"lanes": self.actor.lanes.state(), "random": self.actor.random}

    def restore(self, state: State) -> None:
        self.actor.lanes.restore(state["lanes"])
        self.actor.random = state["random"]

    def close(self) -> None:
        """Nothing was started."""


class ActorPool:
    """The actors that the settings ask for, each in a process of its own, here or on a cluster."""

    def __init__(
        self, problem: Problem, library: Path | None, settings: AgentSettings, seed: int,
        say: Say | None = None,
    ) -> None:  # fmt: skip
        self.given, self.seed, self.born = (library, settings), seed, 0
        self.crew = Crew(
            means(problem, settings),
            settings.actors,
            self._given,
            patience=settings.patience,
            say=say,
            lost=ActorsLost,
        )

    def _given(self, who: int) -> ActorSeed:
        self.born += 1
        return (*self.given, (self.seed, self.born))

    def answer(self, request: ActorRequest) -> Answer:
        weights = {k: np.asarray(v) for k, v in request.weights.items()}
        each = request.seconds / self.crew.count
        request = request._replace(weights=weights, seconds=each)
        self.crew.ask_idle(request)
        who, found = self.crew.answer()
        self.crew.ask(who, request)
        return found

    def state(self) -> dict[str, object]:
        return {"born": self.born}

    def restore(self, state: State) -> None:
        self.born = state["born"]  # other random numbers than before

    def close(self) -> None:
        self.crew.close()


def means(problem: Problem, settings: AgentSettings) -> Means[Any]:
    """The place where actors run."""
    if settings.pool == "ray":
        return Cluster(start, problem, settings.address, JAX_PLATFORMS="cpu")
    return processes.Processes(start, problem, JAX_PLATFORMS="cpu")


def start(given: ActorSeed, problem: Problem) -> Callable[[ActorRequest], Answer]:
    """Start an actor elsewhere; return the function that answers requests.

    Another machine has no such library: its own engine plays there.
    """
    library, settings, seed = given
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
