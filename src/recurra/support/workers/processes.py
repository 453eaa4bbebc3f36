"""Workers that are processes of this machine, asked through pipes.

`python -m recurra.support.workers.processes FD` is such a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

from recurra.support.workers.supervisor import Gone, Start


class Process:
    """A process of this machine, and the line to it."""

    def __init__(self, env: dict[str, str], made_of: object) -> None:
        self.line, theirs = Pipe()
        words = [sys.executable, "-m", __name__, str(theirs.fileno())]
        self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=env)
        theirs.close()
        with suppress(OSError):  # that it has died is seen when it is asked
            self.line.send(made_of)

    def ask(self, request: object) -> None:
        try:
            self.line.send(request)
        except OSError:
            raise self._gone() from None

    def heard(self) -> object:
        try:
            return self.line.recv()
        except (EOFError, OSError):
            raise self._gone() from None

    def end(self) -> None:
        self.line.close()
        self._ended(0.0)

    def _gone(self) -> Gone:
        code = self._ended(1.0)
        return Gone(f"has died ({f'signal {-code}' if code < 0 else f'code {code}'})")

    def _ended(self, seconds: float) -> int:
        """Wait for its exit code; it is killed if it has not ended by then."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Processes:
    """Workers that are processes of this machine; `shared` is sent to each."""

    def __init__(self, start: Start, shared: object, **env: str) -> None:
        self.start, self.shared, self.env = start, shared, environment(**env)

    def born(self, given: object) -> Process:
        return Process(self.env, (self.start, given, self.shared))

    def sent(self, request: object) -> object:
        return request

    def ready(self, workers: Sequence[Process], seconds: float) -> Sequence[Process]:
        found = wait([x.line for x in workers], seconds)
        return [x for x in workers if x.line in found]

    def close(self) -> None:
        """Nothing: what was started has been ended."""


def environment(**more: str) -> dict[str, str]:
    """Ours, with the folder that this package is in: another process of Python finds us by it."""
    package = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def answer_until_gone(number: int) -> None:
    """Answers requests on a file descriptor until who asks is gone; an error is sent."""
    line = Connection(number)
    try:
        start, given, shared = line.recv()
        work = start(given, shared)
        while True:
            line.send(work(line.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except Exception:
        line.send(traceback.format_exc())


if __name__ == "__main__":
    answer_until_gone(int(sys.argv[1]))
