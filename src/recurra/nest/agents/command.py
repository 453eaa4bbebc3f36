"""`recurra tune train`: measure tables of nests, and train a policy on them."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from recurra.errors import RecurraError
from recurra.nest import catalogue
from recurra.nest.actions import PRESETS, Actions
from recurra.nest.agents import policy as policies
from recurra.nest.agents.actors import LearnerSettings
from recurra.nest.agents.vector_env import VectorEnv
from recurra.nest.measure import Evaluator, Protocol, measure_peak
from recurra.nest.measured_table import Table, load, tabulate
from recurra.nest.problem import NestProblem
from recurra.nest.target import VectorTarget, host_target
from recurra.nest.tune import progress_bar
from recurra.support import atomic_write, cpu
from recurra.support.workers.cluster import check_address
from recurra.support.workers.supervisor import Where

if TYPE_CHECKING:
    from recurra.nest.agents.learning import Tell

SIZES = range(64, 257, 16)  # of the paper's 2197 matrix products
CURVE, POLICY, CHECKPOINT = "curve.jsonl", "policy.safetensors", "checkpoint.npz"
HELD_OUT = 5  # one in five tables is held out, and at least one


class CurvePoint(TypedDict):
    """A line of curve.jsonl."""

    rounds: int
    steps: int
    reward: float | None
    seconds: float
    mean_of_best: float
    of_best: float
    of_best_elsewhere: float


@dataclass(frozen=True)
class TuneTrainCommand:
    """Train a policy that schedules matrix products of sizes 64 to 256, on this machine.

    Everything that an episode can reach is measured first, once per size, and kept in the folder;
    the folder also gets curve.jsonl and policy.safetensors, for recurra tune --policy.

    Example: recurra tune train --folder runs/nest --tables 40
    Or: recurra tune train --learner apex --pool ray --address 10.0.0.1:6379 --actors 16
    """

    folder: Path = Path("runs/nest")
    """Where tables, curve and policy are kept; tables that are there are used again."""
    tables: int = 20
    """How many sizes, drawn at random; a tenth of them is only for choosing among policies, another
    one only to say how good the chosen one is."""
    depth: int = 8
    """Actions of an episode."""
    rounds: int | None = None
    """Updates; by default as many as the learner's settings say."""
    learner: Literal["fitted", "dqn", "apex", "ppo", "a3c", "impala"] = "fitted"
    """What is learned from: dynamic programming on the tables, or the agents' own steps."""
    actors: int | None = None
    """Of apex, ppo, a3c and impala: how many act; by default 4."""
    pool: Where | None = None
    """Where they act: in processes of this machine, as is usual; on the machines of a cluster, by
    ray; or here, in turns, as those of ppo do."""
    address: str | None = None
    """With --pool ray: of the cluster, say 10.0.0.1:6379; if left out, a Ray of its own here."""
    resume: bool = False
    """Go on from the folder's checkpoint."""
    actions: Literal["full", "paper"] = "paper"
    """Which splits: the paper's 4, 8, 16, or by 2, 3, 4, 6, 8, 16, 32."""
    backend: Literal["avx512", "avx2"] | None = None
    """The vector instructions; by default the widest that this machine runs."""
    seed: int = 0
    json: bool = False
    """Print one JSON object at the end; progress is on standard error."""

    def __call__(self) -> int:
        self.check()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecurraError(f"{self.folder} cannot be made", facts=str(error)) from None
        on = host_target(self.backend)
        rules = self.rules()
        tables = [self.table(p, rules, on) for p in self.problems()]
        held_out = tables[: max(1, len(tables) // HELD_OUT)]
        with redirect_stdout(sys.stderr):  # for Ray's messages about its workers
            report = self.train(tables[len(held_out) :], held_out, on)
        print(json.dumps(report) if self.json else _summary(report))
        return 0

    def check(self) -> None:
        least = min(x for x in (self.rounds, self.actors, self.depth) if x is not None)
        if self.tables < 2 or least < 1 or self.seed < 0:
            raise RecurraError(
                "training needs two tables, an action, a round and an actor at least, and a seed "
                "from 0 on",
                facts=f"--tables {self.tables} --depth {self.depth} --rounds {self.rounds} "
                f"--actors {self.actors} --seed {self.seed}",
            )
        check_address(self.pool, self.address)
        assert self.settings.rounds

    def rules(self) -> Actions:
        """Return the actions of an episode."""
        return replace(PRESETS[self.actions], steps=self.depth)

    def problems(self) -> list[NestProblem]:
        every = [(m, k, n) for m in SIZES for k in SIZES for n in SIZES]
        Random(self.seed).shuffle(every)  # a larger set of tables contains a smaller one
        return [catalogue.matmul(*s) for s in every[: self.tables]]

    def table(self, problem: NestProblem, rules: Actions, on: VectorTarget) -> Table:
        """Load the table of one problem from the folder, or measure it."""
        sizes = "x".join(str(n) for _, n in problem.sizes)
        path = self.folder / f"{sizes}-{on}-{self.actions}-{self.depth}.npz"
        if path.exists():
            return load(path)
        evaluate = Evaluator(problem, on, Protocol(seconds=0.0005))
        with progress_bar(f"measuring {sizes}") as show:
            table = tabulate(
                problem,
                rules,
                evaluate,
                measure_peak(on),
                tell=lambda done, total: show(done, total, ""),
            )
        table.save(path)
        return table

    def train(
        self, learned: list[Table], held_out: list[Table], on: VectorTarget
    ) -> dict[str, object]:
        """Train, save the policy with the best mean share on half of the tables held out, and
        report its share on the other half.
        """
        from recurra.nest.agents.learning import LearningPoint

        parts = held_out[::2], held_out[1::2] or held_out
        validation, test = (VectorEnv.of(some) for some in parts)
        about = self.about(on, learned, *parts)
        points, begin = self.before(), time.perf_counter()
        policy_file = self.folder / POLICY
        rounds = self.settings.rounds
        spent = points[-1]["seconds"] if points else 0.0
        with progress_bar(f"learning by {self.learner}") as show:

            def tell(x: LearningPoint) -> None:
                weights = x.policy.weights
                shares, others = validation.greedy_shares(weights), test.greedy_shares(weights)
                best = max((p["mean_of_best"] for p in points), default=-1.0)
                point = CurvePoint(
                    rounds=x.rounds, steps=x.steps,
                    reward=None if math.isnan(x.reward) else x.reward,
                    seconds=round(spent + time.perf_counter() - begin, 1),
                    mean_of_best=float(shares.mean()), of_best=float(np.median(shares)),
                    of_best_elsewhere=float(np.median(others)),
                )  # fmt: skip
                points.append(point)
                self.draw(points)
                if point["mean_of_best"] > best:
                    replace(x.policy, about=about).save(policy_file)
                show(x.rounds, rounds, "")

            self.learn(learned, tell)
        policy = policies.load(policy_file)
        shares = test.greedy_shares(policy.weights)
        report = {
            "of_best": float(np.median(shares)),
            "least_of_best": float(shares.min()),
            "of_best_untiled": float(np.median(test.shares[test.first] / test.best)),
            "curve": points,
        }
        replace(policy, about={**about, **report}).save(policy_file)
        return {
            "tables": len(learned),
            "held_out": len(held_out),
            "rounds": rounds,
            "learner": self.learner,
            "seconds": points[-1]["seconds"],
            **report,
            "policy": str(policy_file),
        }

    def before(self) -> list[CurvePoint]:
        """Return the curve up to the checkpoint; without --resume, delete all of an earlier run."""
        from recurra.nest.agents.learning import checkpoint_rounds

        if not self.resume:
            for name in (CHECKPOINT, POLICY):
                (self.folder / name).unlink(missing_ok=True)
            self.draw([])
            return []
        if not all((self.folder / name).exists() for name in (CHECKPOINT, CURVE, POLICY)):
            raise RecurraError(
                f"there is nothing to go on with in {self.folder}",
                facts=f"{CHECKPOINT}, {CURVE} and {POLICY} are not all there",
                hint="leave out --resume",
            )
        lines = (self.folder / CURVE).read_text().splitlines()
        points: list[CurvePoint] = [json.loads(line) for line in lines]
        past = checkpoint_rounds(self.folder / CHECKPOINT)
        known = [x for x in points if x["rounds"] <= past]
        self.draw(known)
        return known

    def draw(self, points: list[CurvePoint]) -> None:
        """Write the curve."""
        atomic_write.save(self.folder / CURVE, "".join(json.dumps(x) + "\n" for x in points))

    @property
    def settings(self) -> LearnerSettings:
        """The learner's settings, with the options."""
        names = ("rounds", "actors", "pool", "address", "seed")
        return settings_of(self.learner, {name: getattr(self, name) for name in names})

    def learn(self, learned: list[Table], tell: Tell) -> None:
        """Run the learner, with about forty calls of `tell`."""
        settings = self.settings
        every = max(1, settings.rounds // 40)
        module = importlib.import_module(f"recurra.nest.agents.{self.learner}")
        module.train(learned, settings, tell=tell, every=every, checkpoint=self.folder / CHECKPOINT)

    def about(self, on: VectorTarget, *tables: list[Table]) -> dict[str, object]:
        """Return the origin of a policy: options, machine and sizes."""
        settings = self.settings
        options = f"--tables {self.tables} --depth {self.depth} --actions {self.actions}"
        options += f" --learner {self.learner} --rounds {settings.rounds} --seed {self.seed}"
        for name in ("actors", "pool"):
            if hasattr(settings, name):
                options += f" --{name} {getattr(settings, name)}"
        names = ("learnt", "choosing", "telling")
        sizes = [["x".join(str(n) for _, n in t.problem.sizes) for t in some] for some in tables]
        return {
            "command": f"recurra tune train {options} --backend {on}",
            "processor": cpu.kind(),
            **dict(zip(names, sizes, strict=True)),
        }


def settings_of(learner: str, options: Mapping[str, object]) -> LearnerSettings:
    """Return the learner's settings with those options that are not None."""
    kind = importlib.import_module(f"recurra.nest.agents.{learner}").train.settings
    options = {name: value for name, value in options.items() if value is not None}
    if unknown := [name for name in options if not hasattr(kind, name)]:
        raise RecurraError(
            f"the learner {learner} has no actors",
            facts=" ".join(f"--{name} {options[name]}" for name in unknown),
            hint="apex, ppo, a3c and impala have",
        )
    return kind(**options)


def _summary(report: Mapping[str, Any]) -> str:
    return (
        f"{report['policy']}: learned from {report['tables']} sizes in {report['seconds']:.0f} s\n"
        f"on {report['held_out']} other sizes, median share of the best nest that an episode "
        f"reaches: {report['of_best']:.2f} (untiled {report['of_best_untiled']:.2f})"
    )
