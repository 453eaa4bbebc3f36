"""Processes that answer requests, and are watched: who dies, or does not answer, is replaced.

A crew has so many of them, each with one request at a time. Another process in somebody's place is
given what `given` says then, so that its random numbers can be others, and is asked what the one
before was asked; this is said aloud. `answer_until_gone` is what such a process runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from recurra.errors import RecurraError

Say = Callable[[str], None]

LIVES = 3  # processes in turn of which none has answered


def environment(**more: str) -> dict[str, str]:
    """Ours, with the folder that this package is in: another process of Python finds us by it."""
    package = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


@dataclass
class Watched:
    """One process, and what it was asked; None if it is idle."""

    process: subprocess.Popen[bytes]
    line: Connection
    asked: Any = None
    since: float = 0.0


class Crew:
    """`count` processes of `python -m module FD`, each first sent `given(who)`."""

    def __init__(
        self,
        module: str,
        count: int,
        given: Callable[[int], Any],
        *,
        patience: float,
        env: dict[str, str],
        say: Say | None = None,
        lost: type[RecurraError] = RecurraError,
    ) -> None:
        """`patience`: seconds that an answer may take. `lost` is raised where nobody answers."""
        self.module, self.count, self.given, self.patience = module, count, given, patience
        self.env, self.say, self.lost = env, say or _aloud, lost
        self.vain = [0] * count  # lives since the last answer
        self.watched: list[Watched] = []

    def ask_idle(self, request: Any) -> None:
        """Asks all that are idle; the first time, starts them."""
        if not self.watched:
            self.watched = [self._born(who) for who in range(self.count)]
        for who, one in enumerate(self.watched):
            if one.asked is None:
                self.ask(who, request)

    def ask(self, who: int, request: Any) -> None:
        one = self.watched[who]
        one.asked, one.since = request, time.monotonic()
        try:
            one.line.send(request)
        except OSError:
            self._replace(who)

    def answer(self) -> tuple[int, Any]:
        """Waits for an answer; who gave it is idle then."""
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
            for who in () if ready else lines.values():
                if time.monotonic() - self.watched[who].since >= self.patience:
                    self._replace(who, f"has not answered for {self.patience:.0f} s")

    def close(self) -> None:
        """Ends all processes."""
        for one in self.watched:
            one.line.close()
            _ended(one.process, 0.0)
        self.watched = []

    def _born(self, who: int) -> Watched:
        ours, theirs = Pipe()
        words = [sys.executable, "-m", self.module, str(theirs.fileno())]
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=self.env)
        theirs.close()
        with suppress(OSError):  # that it has died is seen when it is asked
            ours.send(self.given(who))
        return Watched(process, ours)

    def _heard(self, who: int) -> Any:
        one = self.watched[who]
        try:
            found = one.line.recv()
        except (EOFError, OSError):
            self._replace(who)
            return None
        if isinstance(found, str):
            raise self.lost(f"actor {who} has failed", facts=found)
        one.asked, self.vain[who] = None, 0
        return found

    def _replace(self, who: int, why: str = "") -> None:
        """Another process takes somebody's place, and is asked what the one before was asked."""
        old = self.watched[who]
        code = _ended(old.process, 0.0 if why else 1.0)
        old.line.close()
        self.vain[who] += 1
        why = why or f"has died ({f'signal {-code}' if code < 0 else f'code {code}'})"
        if self.vain[who] >= LIVES:
            raise self.lost(
                f"actor {who} {why}, and so did those before it",
                facts=f"{LIVES} processes in turn, and none has answered",
            )
        self.say(f"actor {who} {why}: another process takes its place")
        self.watched[who] = self._born(who)
        self.ask(who, old.asked)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Its code; it is killed if it has not ended by then."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _aloud(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def answer_until_gone(number: int, start: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Answers requests on a file descriptor until who asks is gone.

    `start` makes of what comes first the function that answers; an error of either is sent.
    """
    line = Connection(number)
    try:
        work = start(line.recv())
        while True:
            line.send(work(line.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except Exception:
        line.send(traceback.format_exc())
