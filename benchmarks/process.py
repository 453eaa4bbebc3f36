"""A contestant in a process of its own, where its memory is its own and its times are told apart.

    python -m benchmarks.process package.module:function '{"B": 64, "T": 250, ..}'

makes the contestant of that work and answers each line of its standard input by one of JSON:

    run 4          {"cpu": 0.7, "wall": 0.7}       seconds of 4 more iterations
    answer X.npz   {"same_draws": true}            what the first iteration computes, as arrays
    peak           {"mb": 310.5}                   the most memory that the process has held

Needs NumPy alone, so that it runs in the virtual environments of other frameworks, too.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Answer, Contestant
from benchmarks.machine import pinned
from benchmarks.worker import environment
from recurra.errors import RecurraError
from recurra.report.progress import track


class Ended(RecurraError):
    """A contestant's process that cannot go on; the reason stands on standard error."""

    exit_code = 1


class Process:
    """A running contestant; `make` is `module:function`, called with the work by `python`.

    The work is a dataclass, made anew over there. `before` is put in front of the command.
    """

    def __init__(
        self,
        make: str,
        work: Any,
        threads: int,
        python: Path | str = sys.executable,
        *,
        before: Sequence[str] = (),
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.make = make
        of = f"{type(work).__module__}:{type(work).__qualname__}"
        command = [*before, str(python), "-m", __name__, make, of, json.dumps(asdict(work))]
        env = {**environment(OMP_NUM_THREADS=str(threads)), **env}
        with pinned(threads):  # the child inherits the cores with its first instruction
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
            )
        try:
            self.name: str = self._read()["name"]
        except Ended:
            self.end()
            raise

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def run(self, iterations: int) -> tuple[float, float]:
        """Seconds of process CPU and of wall time."""
        found = self._ask(f"run {iterations}")
        return found["cpu"], found["wall"]

    def contestant(self) -> Contestant:
        """Its name, its answer and whether that comes from our draws; asks once."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "answer.npz"
            same = bool(self._ask(f"answer {path}")["same_draws"])
            with np.load(path) as stored:
                answer: Answer = {k: stored[k] for k in stored.files}
        return Contestant(self.name, self.run, lambda: answer, same)

    def peak_mb(self) -> float:
        """The most resident memory so far, 10⁶ bytes."""
        return float(self._ask("peak")["mb"])

    def end(self) -> None:
        """Lets the process end."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the reading below tells why
            print(line, file=self.process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Ended(
                f"the process of {self.make} has ended",
                facts=f"its code is {self.process.wait()}; the reason is printed above",
            )
        return json.loads(line)


def interleaved(
    processes: Sequence[Process], iterations: Sequence[int], rounds: int, name: str = "timing"
) -> NDArray[np.float64]:
    """Milliseconds per iteration [rounds, processes, (cpu, wall)], taken in turns.

    Each process runs as many `iterations` at a time as are given for it; the order is reversed in
    every other round. All have run before. NaN from where a process has ended.
    """
    ms = np.full((rounds, len(processes), 2), np.nan)
    with track(rounds, f"{name}: rounds of {len(processes)} programs") as bar:
        for i in range(rounds):
            order = range(len(processes)) if i % 2 == 0 else reversed(range(len(processes)))
            for j in order:
                with suppress(Ended):
                    ms[i, j] = np.array(processes[j].run(iterations[j])) * 1e3 / iterations[j]
            bar.update(i + 1)
    return ms


def peak_mb() -> float:
    """The high-water mark of this process's resident memory, 10⁶ bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kib) * 1024 / 1e6


def found(name: str) -> Any:
    """What `module:name` names."""
    module, own = name.split(":")
    return getattr(importlib.import_module(module), own)


def serve(make: str, of: str, work: str) -> None:
    """Make the contestant, then answer lines until there are no more."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints does not disturb the replies

    def reply(**values: Any) -> None:
        print(json.dumps(values), file=replies, flush=True)

    contestant: Contestant = found(make)(found(of)(**json.loads(work)))
    reply(name=contestant.name)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "run":
            cpu, wall = time.process_time(), time.perf_counter()
            contestant.run(int(rest))
            reply(cpu=time.process_time() - cpu, wall=time.perf_counter() - wall)
        elif word == "answer":
            arrays: Any = contestant.answer()
            np.savez(rest, **arrays)
            reply(same_draws=contestant.same_draws)
        elif word == "peak":
            reply(mb=peak_mb())


if __name__ == "__main__":
    serve(*sys.argv[1:])
