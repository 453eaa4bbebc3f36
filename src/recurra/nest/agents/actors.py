"""Actors: what acts while a learner learns; in processes that are watched, or here, in turns.

An actor is told weights and answers with arrays: episodes, transitions, gradients. A pool has so
many of them, each with one request at a time, so none runs far ahead of the learner. A process that
dies, or does not answer, is replaced by another one with other random numbers; this is said aloud.
`python -m recurra.nest.agents.actors FD` is such a process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from recurra.errors import RecurraError
from recurra.nest.agents.world import World, opened
from recurra.nest.child import environment

Answer = Mapping[str, NDArray[Any]]
Say = Callable[[str], None]
Where = Literal["processes", "turns"]
"""Actors are processes; or they act in the learner's own, one after the other: slower, but a run
can be repeated."""

PATIENCE_S = 120.0  # the longest that an answer may take
LIVES = 3  # of an actor that has not answered once in any of them


@dataclass(frozen=True)
class Task:
    """What an actor is made of: which of how many it is, and its random numbers."""

    kind: Callable[[World, Task], Actor]
    settings: Any
    who: int
    count: int
    seed: tuple[int, ...]


class Actor(Protocol):
    """Made by `kind(world, task)`."""

    random: np.random.Generator

    def work(self, weights: Any) -> Answer: ...


class Pool(Protocol):
    """Actors, counted from 0."""

    def begin(self, weights: Any) -> None:
        """Asks all that are idle."""
        ...

    def ask(self, who: int, weights: Any) -> None:
        """Asks an idle one."""
        ...

    def answer(self) -> tuple[int, Answer]:
        """Waits for an answer; its actor is idle then."""
        ...

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Any], steps: int) -> None:
        """Before the first request; `steps` have been taken before."""
        ...

    def close(self) -> None: ...


def pool(kind: Callable[[World, Task], Actor], world: World, settings: Any) -> Pool:
    """`settings` has actors, pool, seed."""
    tasks = [
        Task(kind, settings, who, settings.actors, (settings.seed, who))
        for who in range(settings.actors)
    ]
    return Turns(world, tasks) if settings.pool == "turns" else Processes(world, tasks)


class Turns:
    """Actors of this process: they act when an answer is waited for, first asked first."""

    def __init__(self, world: World, tasks: list[Task]) -> None:
        self.actors = [task.kind(world, task) for task in tasks]
        self.asked: dict[int, Any] = {}

    def begin(self, weights: Any) -> None:
        for who in range(len(self.actors)):
            if who not in self.asked:
                self.ask(who, weights)

    def ask(self, who: int, weights: Any) -> None:
        self.asked[who] = {name: np.asarray(w) for name, w in weights.items()}

    def answer(self) -> tuple[int, Answer]:
        who = next(iter(self.asked))
        return who, self.actors[who].work(self.asked.pop(who))

    def state(self) -> dict[str, Any]:
        order = {str(who): k for k, who in enumerate(self.asked)}
        asked = {str(who): weights for who, weights in self.asked.items()}
        random = {str(who): actor.random for who, actor in enumerate(self.actors)}
        return {"order": order, "asked": asked, "random": random}

    def restore(self, state: Mapping[str, Any], steps: int) -> None:
        asked: Mapping[str, int] = state.get("order", {})
        self.asked = {int(who): state["asked"][who] for who in sorted(asked, key=asked.__getitem__)}
        for who, actor in enumerate(self.actors):
            actor.random = state["random"][str(who)]

    def close(self) -> None:
        self.asked.clear()


@dataclass
class _Watched:
    """One actor's process, and what it was asked."""

    process: subprocess.Popen[bytes]
    line: Connection
    asked: Any = None
    since: float = 0.0


class Processes:
    """Actors that are processes; the world lies in files that all of them map."""

    def __init__(
        self,
        world: World,
        tasks: list[Task],
        *,
        say: Say | None = None,
        patience: float = PATIENCE_S,
    ) -> None:
        self.tasks, self.say, self.patience = tasks, say or _aloud, patience
        self.folder = tempfile.TemporaryDirectory(prefix="recurra-")
        world.save(Path(self.folder.name))
        self.lives = [0] * len(tasks)
        self.vain = [0] * len(tasks)  # lives since the last answer
        self.steps = 0
        self.watched: list[_Watched] = []

    def begin(self, weights: Any) -> None:
        if not self.watched:
            self.watched = [self._born(who) for who in range(len(self.tasks))]
        for who, actor in enumerate(self.watched):
            if actor.asked is None:
                self.ask(who, weights)

    def _born(self, who: int) -> _Watched:
        ours, theirs = Pipe()
        words = [sys.executable, "-m", __name__, str(theirs.fileno())]
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        env = environment(JAX_PLATFORMS="cpu", **alone)
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=env)
        theirs.close()
        task = self.tasks[who]
        seed = (*task.seed, self.steps, self.lives[who])
        ours.send((self.folder.name, Task(task.kind, task.settings, who, task.count, seed)))
        return _Watched(process, ours)

    def ask(self, who: int, weights: Any) -> None:
        actor = self.watched[who]
        actor.asked = {name: np.asarray(w) for name, w in weights.items()}
        actor.since = time.monotonic()
        try:
            actor.line.send(actor.asked)
        except OSError:
            self._replace(who)

    def answer(self) -> tuple[int, Answer]:
        while True:
            lines = {id(x.line): who for who, x in enumerate(self.watched) if x.asked is not None}
            assert lines, "somebody has been asked"
            waiting = [self.watched[who] for who in lines.values()]
            latest = min(x.since for x in waiting) + self.patience
            ready = wait([x.line for x in waiting], max(0.0, latest - time.monotonic()))
            for line in ready:
                who = lines[id(line)]
                if (found := self._heard(who)) is not None:
                    return who, found
            if not ready:
                for who in lines.values():
                    if time.monotonic() - self.watched[who].since >= self.patience:
                        self._replace(who, f"has not answered for {self.patience:.0f} s")

    def _heard(self, who: int) -> Answer | None:
        actor = self.watched[who]
        try:
            found = actor.line.recv()
        except (EOFError, OSError):
            self._replace(who)
            return None
        if isinstance(found, str):
            raise RecurraError(f"actor {who} has failed", facts=found)
        actor.asked, self.vain[who] = None, 0
        return found

    def _replace(self, who: int, why: str = "") -> None:
        """Another process takes an actor's place, and is asked what it was asked."""
        old = self.watched[who]
        code = _ended(old.process, 0.0 if why else 1.0)
        old.line.close()
        self.lives[who] += 1
        self.vain[who] += 1
        why = why or f"has died ({f'signal {-code}' if code < 0 else f'code {code}'})"
        if self.vain[who] >= LIVES:
            raise RecurraError(
                f"actor {who} {why}, and so did those before it",
                facts=f"{LIVES} processes in turn, and none has answered",
            )
        self.say(f"actor {who} {why}: another process takes its place")
        self.watched[who] = self._born(who)
        self.ask(who, old.asked)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any], steps: int) -> None:
        self.steps = steps  # other random numbers than at the beginning

    def close(self) -> None:
        for actor in self.watched:
            actor.line.close()
            actor.process.kill()
            actor.process.wait()
        self.watched = []
        self.folder.cleanup()


def _ended(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Its code; it is killed if it has not ended by then."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _aloud(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def main(number: int) -> None:
    """Answers until the learner is gone."""
    line = Connection(number)
    try:
        folder, task = line.recv()
        actor = task.kind(opened(Path(folder)), task)
        while True:
            line.send(actor.work(line.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except Exception:
        line.send(traceback.format_exc())


if __name__ == "__main__":
    main(int(sys.argv[1]))
