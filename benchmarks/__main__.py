"""The command `python -m benchmarks NAME`: a report on standard output, progress beside it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from benchmarks import harness, machine
from recurra import cli
from recurra.errors import RecurraError

SMALL = ("host", "launch", "programs")  # suites of files with one program each
SUITES = (
    *("core", "backends", "ppo", "memory", "learning", "decode", "nest", "mapping", "window"),
    *SMALL,
)
OPTIONS: Mapping[str, Sequence[str]] = {  # the suites that have them
    "peers": ("ppo",),
    "only": ("ppo", "memory", "decode", "nest", "mapping", *SMALL),
    "sizes": ("nest",),
    "out": ("learning", "memory", "decode", "mapping"),
    "clock": SMALL,
    **{option: ("mapping",) for option in ("learn", "instances", "solvers", "seconds", "seeds")},
}


@dataclass(frozen=True)
class Benchmark:
    """Measure our programs beside those written by hand; answers are compared before times.

    Example: recurra bench core --json --quick
    The same in a checkout: python -m benchmarks core --json --quick
    """

    name: Positional[str] = "core"
    """Which suite: core, backends, ppo, memory, learning, decode, nest, mapping, window, host,
    launch or programs"""
    json: bool = False
    """Print one JSON object; progress is on standard error."""
    quick: bool = False
    """Fewer repetitions: minutes instead of an hour."""
    peers: Path | None = None
    """With ppo: a folder for real peers, each installed in a virtual environment of its own."""
    only: str | None = None
    """Parts of the table, separated by commas. With ppo: 1T, 2T, grid, memory, start. With decode:
    tokens, memory, figures. With nest: compile, peaks, kernels, matmul, generators, programs,
    ceilings, policy, searches, minutes. With mapping: solve, steps, execute. With memory:
    fit, shuffled, speed, returns. With host, launch and programs: names of programs."""
    sizes: str | None = None
    """With nest: so many sizes of its part matmul, 200 if left out; or from one to another of them,
    as in 100..200."""
    out: Path | None = None
    """With learning: a folder for every episode and the curves; runs/learning if left out. With
    decode: a folder for decoding.svg and its numbers, which are measured where it is named. With
    mapping: a folder for mapping.html, the paper's figures, and every search: a bench that was
    stopped goes on. With memory: one for memory.svg."""
    clock: Literal["cpu", "wall"] | None = None
    """With host, launch and programs: seconds of the process on all cores (cpu, if left out), or
    of the day."""
    learn: bool = False
    """With mapping: agents that learn the game, beside evolution and chance; takes hours."""
    instances: str | None = None
    """With mapping: instances of its library, separated by commas; all if left out."""
    solvers: str | None = None
    """With mapping: whom to compare with, separated by commas; all if left out."""
    seconds: float | None = None
    """With mapping: CPU seconds of each search."""
    seeds: int | None = None
    """With mapping: searches of each solver, with random numbers 0, 1, .."""

    def __call__(self) -> int:
        if self.name not in SUITES:
            raise RecurraError(
                f"there is no bench {self.name!r}", facts=f"there are: {', '.join(SUITES)}"
            )
        given = {k: getattr(self, k) for k in OPTIONS}
        options = {k: v for k, v in given.items() if v is not None and v is not False}
        for option in options:
            if self.name not in OPTIONS[option]:
                *some, last = OPTIONS[option]
                theirs = f"{', '.join(some)} and {last}" if some else last
                raise RecurraError(
                    f"--{option} is for the bench {theirs}, not {self.name}",
                    hint="leave it out; `recurra bench --help` says what it does",
                )
        os.environ["RECURRA_CACHE"] = "0"  # what is measured is made, here and by workers
        suite = importlib.import_module(f"benchmarks.{self.name}.suite")
        load = machine.load()
        rows: Sequence[harness.Row] = suite.suite(self.quick, **options)
        report = harness.report(self.name, rows, load)
        if self.json:
            print(json.dumps(report))
        else:
            at = report["machine"]
            print(getattr(suite, "table", harness.table)(rows))
            print(f"\n{at['cpu']}, {at['cores']} cores, load {load:.1f}; jax {at['jax']}; ", end="")
            print(f"commit {report['commit']}")
        return 1 if harness.failures(rows) else 0


def main(words: Sequence[str]) -> int:
    """The exit code of the command."""
    return cli.exit_code(partial(cli.run, Benchmark, "python -m benchmarks", words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
