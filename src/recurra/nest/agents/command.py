"""`recurra tune train`: measures tables of nests, and trains a policy on them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np

from recurra.errors import RecurraError
from recurra.nest import catalogue
from recurra.nest.actions import PRESETS, Actions
from recurra.nest.agents.policy import Policy
from recurra.nest.kept import processor
from recurra.nest.measure import Evaluator, Protocol, peak
from recurra.nest.problem import Problem
from recurra.nest.table import Table, load, tabulate
from recurra.nest.target import Target, target

Tell = Callable[[int, Policy], None]
SIZES = range(64, 257, 16)  # of the paper's 2197 matrix products
HELD_OUT = 5  # a fifth of the tables is not learnt from, but one at least
ROUNDS = {"fitted": 4000, "dqn": 20_000}


@dataclass(frozen=True)
class Train:
    """Train a policy that schedules matrix products of sizes 64 to 256, on this machine.

    Everything that an episode can reach is measured first, once per size, and kept in the folder;
    the folder also gets curve.jsonl and policy.safetensors, for recurra tune --policy.

    Example: recurra tune train --folder runs/nest --tables 40
    """

    folder: Path = Path("runs/nest")
    """Where tables, curve and policy are kept; tables that are there are used again."""
    tables: int = 20
    """How many sizes, drawn at random; a tenth of them is only for choosing among policies, another
    one only to say how good the chosen one is."""
    depth: int = 8
    """Actions of an episode."""
    rounds: int | None = None
    """Updates; by default 4000 where values are fitted, 20000 steps of all episodes for DQN."""
    learner: Literal["fitted", "dqn"] = "fitted"
    """What values are learnt from: dynamic programming on the tables, or the agent's own steps."""
    actions: Literal["full", "paper"] = "paper"
    """Which splits: the paper's 4, 8, 16, or by 2, 3, 4, 6, 8, 16, 32."""
    backend: Literal["avx512", "avx2"] | None = None
    """The vector instructions; by default the widest that this machine runs."""
    seed: int = 0
    json: bool = False
    """Print one JSON object at the end; progress is on standard error."""

    def __call__(self) -> int:
        if self.tables < 2 or self.depth < 1 or self.rounds == 0:
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
        report = self.train(tables[len(held_out) :], held_out, on)
        print(json.dumps(report) if self.json else _told(report))
        return 0

    def problems(self) -> list[Problem]:
        every = [(m, k, n) for m in SIZES for k in SIZES for n in SIZES]
        Random(self.seed).shuffle(every)  # so that more tables are those of a smaller set, and more
        return [catalogue.matmul(*s) for s in every[: self.tables]]

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

    def train(self, learnt: list[Table], held_out: list[Table], on: Target) -> dict[str, Any]:
        """Learns, keeps the policy whose mean share is best on half of the tables held out, and
        says how good it is on the other half, which had no part in that.
        """
        from recurra.nest.agents.dqn import shares_of_best

        choosing, telling = held_out[::2], held_out[1::2] or held_out
        points, best = list[dict[str, float]](), list[Policy]()
        begin, curve = time.perf_counter(), self.folder / "curve.jsonl"
        curve.write_text("")
        rounds = self.rounds or ROUNDS[self.learner]
        with _bar("learning") as bar:

            def tell(done: int, policy: Policy) -> None:
                shares, others = (shares_of_best(policy, some) for some in (choosing, telling))
                spent = time.perf_counter() - begin
                mean = float(np.mean(shares))
                if mean > max((x["mean_of_best"] for x in points), default=-1.0):
                    best[:] = [policy]
                median, elsewhere = (float(np.median(x)) for x in (shares, others))
                points.append(
                    dict(rounds=done, seconds=round(spent, 1), mean_of_best=mean,
                         of_best=median, of_best_elsewhere=elsewhere)
                )  # fmt: skip
                with curve.open("a") as file:
                    file.write(json.dumps(points[-1]) + "\n")
                bar(done, rounds)

            self.learner_of(learnt, rounds, tell)
        shares = shares_of_best(best[0], telling)
        report: dict[str, Any] = {
            "tables": len(learnt),
            "held_out": len(held_out),
            "rounds": rounds,
            "learner": self.learner,
            "seconds": time.perf_counter() - begin,
            "of_best": float(np.median(shares)),
            "least_of_best": min(shares),
            "of_best_untiled": float(np.median([float(t.gflops[0]) / t.best for t in telling])),
            "curve": points,
        }
        report["policy"] = str(self.keep(best[0], report, on, learnt, choosing, telling))
        return report

    def learner_of(self, learnt: list[Table], rounds: int, tell: Tell) -> None:
        """Runs the learner, which tells some forty policies."""
        from recurra.nest.agents import dqn, fitted

        every = max(1, rounds // 40)
        if self.learner == "dqn":
            dqn.train(learnt, dqn.Settings(rounds=rounds, seed=self.seed), tell=tell, every=every)
        else:
            settings = fitted.Settings(rounds=rounds, seed=self.seed)
            fitted.train(learnt, settings, tell=tell, every=every)

    def keep(
        self, policy: Policy, report: dict[str, Any], on: Target, *tables: list[Table]
    ) -> Path:
        """With what it was made of: options, machine, sizes and the curve."""
        options = f"--tables {self.tables} --depth {self.depth} --actions {self.actions}"
        options += f" --learner {self.learner} --rounds {report['rounds']} --seed {self.seed}"
        names = ("learnt", "choosing", "telling")
        sizes = [["x".join(str(n) for _, n in t.problem.sizes) for t in some] for some in tables]
        about = {
            "command": f"recurra tune train {options} --backend {on}",
            "processor": processor(),
            **{k: report[k] for k in ("of_best", "least_of_best", "of_best_untiled", "curve")},
            **dict(zip(names, sizes, strict=True)),
        }
        path = self.folder / "policy.safetensors"
        replace(policy, about=about).save(path)
        return path


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
