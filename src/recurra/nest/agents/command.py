"""`recurra tune train`: measures tables of nests, and trains a policy on them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np

from recurra.errors import RecurraError
from recurra.nest import catalogue
from recurra.nest.actions import PRESETS, Actions
from recurra.nest.measure import Evaluator, Protocol, peak
from recurra.nest.problem import Problem
from recurra.nest.table import Table, load, tabulate
from recurra.nest.target import Target, target

SIZES = range(64, 257, 16)  # of the paper's 2197 matrix products
HELD_OUT = 5  # a fifth of the tables is not learnt from, but one at least


@dataclass(frozen=True)
class Train:
    """Train a policy that schedules matrix products of sizes 64 to 256, on this machine.

    Everything that an episode can reach is measured first, once per size, and kept in the folder;
    the folder also gets curve.jsonl and policy.safetensors, for recurra tune --policy.

    Example: recurra tune train --folder runs/nest --tables 20 --rounds 20000
    """

    folder: Path = Path("runs/nest")
    """Where tables, curve and policy are kept; tables that are there are used again."""
    tables: int = 20
    """How many sizes, drawn at random; a fifth of them is only for the curve."""
    depth: int = 8
    """Actions of an episode."""
    rounds: int = 20_000
    """Steps of all episodes together."""
    actions: Literal["full", "paper"] = "paper"
    """Which splits: the paper's 4, 8, 16, or by 2, 3, 4, 6, 8, 16, 32."""
    backend: Literal["avx512", "avx2"] | None = None
    """The vector instructions; by default the widest that this machine runs."""
    seed: int = 0
    json: bool = False
    """Print one JSON object at the end; progress is on standard error."""

    def __call__(self) -> int:
        if self.tables < 2 or self.depth < 1 or self.rounds < 1:
            raise RecurraError(
                "training needs two tables, an action and a round at least",
                facts=f"--tables {self.tables} --depth {self.depth} --rounds {self.rounds}",
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecurraError(f"{self.folder} cannot be made", facts=str(error)) from None
        on = target(self.backend)
        rules = replace(PRESETS[self.actions], steps=self.depth)
        tables = [self.table(p, rules, on) for p in self.problems()]
        held_out = tables[: max(1, len(tables) // HELD_OUT)]
        report = self.train(tables[len(held_out) :], held_out)
        print(json.dumps(report) if self.json else _told(report))
        return 0

    def problems(self) -> list[Problem]:
        every = [(m, k, n) for m in SIZES for k in SIZES for n in SIZES]
        return [catalogue.matmul(*s) for s in Random(self.seed).sample(every, self.tables)]

    def table(self, p: Problem, rules: Actions, on: Target) -> Table:
        """Of one problem: from the folder, or measured."""
        sizes = "x".join(str(n) for _, n in p.sizes)
        path = self.folder / f"{sizes}-{on}-{self.actions}-{self.depth}.npz"
        if path.exists():
            return load(path)
        evaluate = Evaluator(p, on, Protocol(seconds=0.0005))
        with _bar(f"measuring {sizes}") as bar:
            table = tabulate(p, rules, evaluate, peak(on), tell=bar)
        table.save(path)
        return table

    def train(self, learnt: list[Table], held_out: list[Table]) -> dict[str, Any]:
        from recurra.nest.agents.dqn import Settings, shares_of_best, train
        from recurra.nest.agents.policy import Policy

        points: list[dict[str, float]] = []
        begin, curve = time.perf_counter(), self.folder / "curve.jsonl"
        curve.write_text("")
        with _bar("learning") as bar:

            def tell(done: int, policy: Policy) -> None:
                shares = shares_of_best(policy, held_out)
                spent = time.perf_counter() - begin
                points.append(dict(rounds=done, seconds=spent, of_best=float(np.median(shares))))
                with curve.open("a") as file:
                    file.write(json.dumps(points[-1]) + "\n")
                bar(done, self.rounds)

            settings = Settings(rounds=self.rounds, seed=self.seed)
            every = max(1, self.rounds // 40)
            policy = train(learnt, settings, tell=tell, every=every)
        path = self.folder / "policy.safetensors"
        policy.save(path)
        untiled = [float(t.gflops[0]) / t.best for t in held_out]
        return {
            "policy": str(path),
            "tables": len(learnt),
            "held_out": len(held_out),
            "rounds": self.rounds,
            "seconds": time.perf_counter() - begin,
            "of_best": float(np.median(shares_of_best(policy, held_out))),
            "of_best_untiled": float(np.median(untiled)),
            "curve": points,
        }


@contextmanager
def _bar(name: str) -> Generator[Any]:
    """A bar on standard error that is told (done, all)."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(name)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _told(report: dict[str, Any]) -> str:
    return (
        f"{report['policy']}: learnt from {report['tables']} sizes in {report['seconds']:.0f} s\n"
        f"on {report['held_out']} other sizes, median share of the best nest that an episode "
        f"reaches: {report['of_best']:.2f} (untiled {report['of_best_untiled']:.2f})"
    )
