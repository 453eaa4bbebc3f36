"""Who acts while the learner learns: here, in turns, or in processes that are watched.

A process that dies, or does not answer, is replaced by another one with other random numbers; this
is said aloud. `python -m recurra.mapping.learn.actors FD` is such a process.
"""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from recurra.errors import RecurraError
from recurra.mapping import engines
from recurra.mapping.engines import Engine
from recurra.mapping.flat import Flat, flat
from recurra.mapping.learn.acting import Lanes, Played, reference
from recurra.mapping.learn.planning import Forest, Plan, planner
from recurra.mapping.learn.replay import Segment
from recurra.mapping.learn.settings import Settings
from recurra.mapping.learn.view import View, surroundings
from recurra.memory.problem import Problem
from recurra.nest.child import environment

LIVES = 3  # processes in turn of which none has answered


class ActorsLost(RecurraError):
    """No actor answers any more."""


class Request(NamedTuple):
    """Weights, and the temperature."""

    weights: Mapping[str, Any]
    heat: float


class Answer(NamedTuple):
    """Pieces, games that ended, CPU seconds that this took in another process."""

    pieces: Segment
    ended: list[Played]
    seconds: float


class Actor:
    """Lanes of games, and how they are decided."""

    def __init__(self, flat: Flat, engine: Engine, s: Settings, seed: tuple[int, ...]) -> None:
        expected = reference(flat, engine)
        self.settings, self.random = s, np.random.default_rng(seed)
        self.lanes = Lanes(flat, engine, expected, s.lanes, s.cells)
        self.near = surroundings(flat)
        self.forest = Forest(flat, s.cells, expected, self.lanes.games)
        self.plan = planner(s)

    def work(self, request: Request) -> Answer:
        weights = {k: jax.numpy.asarray(v) for k, v in request.weights.items()}

        def decide(seen: View) -> Plan:
            key = jax.random.key(int(self.random.integers(2**32)))
            return self.plan(weights, self.near, seen, key, request.heat, self.forest.number)

        pieces, ended = self.lanes.play(decide, self.settings.segment)
        return Answer(pieces, ended, 0.0)


class Actors(Protocol):
    """One request at a time for each."""

    def answer(self, request: Request) -> Answer:
        """The next answer; whoever gave it is asked again with this request."""
        ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class Here:
    """One actor, in this process."""

    def __init__(self, flat: Flat, engine: Engine, s: Settings, seed: int) -> None:
        self.actor = Actor(flat, engine, s, (seed, 0))

    def answer(self, request: Request) -> Answer:
        return self.actor.work(request)

    def state(self) -> dict[str, Any]:
        return {"lanes": self.actor.lanes.state(), "random": self.actor.random}

    def restore(self, state: dict[str, Any]) -> None:
        self.actor.lanes.restore(state["lanes"])
        self.actor.random = state["random"]

    def close(self) -> None:
        """Nothing was started."""


@dataclass
class _Watched:
    process: subprocess.Popen[bytes]
    line: Connection
    since: float = 0.0


class Processes:
    """As many actors as the settings say, each in a process of its own."""

    def __init__(
        self, problem: Problem, library: Path | None, s: Settings, seed: int,
        say: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.given, self.settings, self.seed = (problem, library, s), s, seed
        self.say = say or (lambda words: print(words, file=sys.stderr, flush=True))
        self.vain, self.born = [0] * s.actors, 0
        self.watched: list[_Watched] = []

    def answer(self, request: Request) -> Answer:
        request = Request({k: np.asarray(v) for k, v in request.weights.items()}, request.heat)
        while len(self.watched) < self.settings.actors:
            self.watched.append(self._start())
            self._ask(len(self.watched) - 1, request)
        while True:
            latest = min(x.since for x in self.watched) + self.settings.patience
            ready = wait([x.line for x in self.watched], max(0.0, latest - time.monotonic()))
            for who, x in enumerate(self.watched):
                silent = time.monotonic() - x.since >= self.settings.patience
                if x.line in ready:
                    found = self._heard(who, request)
                    if found is not None:
                        self._ask(who, request)
                        return found
                elif silent:
                    self._replace(who, "does not answer", request)

    def _start(self) -> _Watched:
        ours, theirs = Pipe()
        words = [sys.executable, "-m", __name__, str(theirs.fileno())]
        env = environment(JAX_PLATFORMS="cpu")
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=env)
        theirs.close()
        self.born += 1
        with suppress(OSError):  # that it has died is seen when it is asked
            ours.send((*self.given, (self.seed, self.born)))
        return _Watched(process, ours)

    def _ask(self, who: int, request: Request) -> None:
        self.watched[who].since = time.monotonic()
        try:
            self.watched[who].line.send(request)
        except OSError:
            self._replace(who, "has died", request)

    def _heard(self, who: int, request: Request) -> Answer | None:
        try:
            found = self.watched[who].line.recv()
        except (EOFError, OSError):
            self._replace(who, "has died", request)
            return None
        if isinstance(found, str):
            raise ActorsLost(f"actor {who} has failed", facts=found)
        self.vain[who] = 0
        return found

    def _replace(self, who: int, why: str, request: Request) -> None:
        _end(self.watched[who])
        self.vain[who] += 1
        if self.vain[who] >= LIVES:
            raise ActorsLost(
                f"actor {who} {why}, and so did those before it",
                facts=f"{LIVES} processes in turn, and none has answered",
            )
        self.say(f"actor {who} {why}: another process takes its place")
        self.watched[who] = self._start()
        self._ask(who, request)

    def state(self) -> dict[str, Any]:
        return {"born": self.born}

    def restore(self, state: dict[str, Any]) -> None:
        self.born = state["born"]  # other random numbers than before

    def close(self) -> None:
        for x in self.watched:
            _end(x)
        self.watched = []


def _end(x: _Watched) -> None:
    x.line.close()
    x.process.kill()
    x.process.wait()


def main(number: int) -> None:
    """Answers until the learner is gone."""
    line = Connection(number)
    try:
        problem, library, settings, seed = line.recv()
        engine = engines.native_engine(library) if library else engines.engine("python")
        actor = Actor(flat(problem), engine, settings, seed)
        while True:
            request, start = line.recv(), time.process_time()
            answer = actor.work(request)
            line.send(answer._replace(seconds=time.process_time() - start))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except Exception:
        line.send(traceback.format_exc())


if __name__ == "__main__":
    from recurra.mapping.learn import actors  # what is sent must be of the module's own name

    actors.main(int(sys.argv[1]))
