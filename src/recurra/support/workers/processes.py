"""Workers that are processes of this machine, with requests and answers in pipes.

`python -m recurra.support.workers.processes FD` runs such a process.
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

from recurra.support.workers.supervisor import Start, WorkerGone


class Process:
    """A process of this machine, and the pipe to it."""

    def __init__(self, env: dict[str, str], start: object) -> None:
        self.pipe, theirs = Pipe()
        words = [sys.executable, "-m", __name__, str(theirs.fileno())]
        self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=env)
        theirs.close()
        with suppress(OSError):  # a death is reported at the first request
            self.pipe.send(start)

    def send(self, request: object) -> None:
        try:
            self.pipe.send(request)
        except OSError:
            raise self._gone() from None

    def receive(self) -> object:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None

    def stop(self) -> None:
        self.pipe.close()
        self._exit_code(0.0)

    def _gone(self) -> WorkerGone:
        code = self._exit_code(1.0)
        return WorkerGone(f"has died ({f'signal {-code}' if code < 0 else f'code {code}'})")

    def _exit_code(self, seconds: float) -> int:
        """Wait for the exit code; kill the process if it takes longer."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Processes:
    """A factory of workers that are processes of this machine; `shared` is sent to each."""

    def __init__(self, start: Start, shared: object, **env: str) -> None:
        self.create, self.shared, self.env = start, shared, environment(**env)

    def start(self, arguments: object) -> Process:
        return Process(self.env, (self.create, arguments, self.shared))

    def prepare(self, request: object) -> object:
        return request

    def wait(self, workers: Sequence[Process], seconds: float) -> Sequence[Process]:
        ready = wait([x.pipe for x in workers], seconds)
        return [x for x in workers if x.pipe in ready]

    def close(self) -> None:
        pass


def environment(**more: str) -> dict[str, str]:
    """Return our environment variables, with this package's folder in PYTHONPATH."""
    package = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def answer_until_gone(number: int) -> None:
    """Answer requests on a file descriptor until its other end is closed; send an error as text."""
    pipe = Connection(number)
    try:
        start, arguments, shared = pipe.recv()
        work = start(arguments, shared)
        while True:
            pipe.send(work(pipe.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except Exception:
        pipe.send(traceback.format_exc())


if __name__ == "__main__":
    answer_until_gone(int(sys.argv[1]))
