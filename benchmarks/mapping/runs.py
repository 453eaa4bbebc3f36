"""Searches of the mapping benches and what they found, kept in a folder if there is one: a bench
that was stopped goes on, and the next one takes what is there."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine
from benchmarks.harness import progress
from benchmarks.parts import named
from recurra.errors import RecurraError
from recurra.mapping.bounds import bound
from recurra.mapping.engine_choice import Engine
from recurra.mapping.model_library import LIBRARY, instance
from recurra.mapping.search import FINALISTS
from recurra.mapping.simulate import simulate
from recurra.mapping.solvers import solver_of
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Placement, Problem, Solution

OURS, BASELINE = "default", "xla-like"
STAGES = 10  # of how many answers rewards and latencies are compared: section 5.3
APART = 0.01  # of what there is to gain: how much better the next of them is
NEAR = 0.03  # how near to its last answer a search must be to be nearly there
Floats = NDArray[np.float64]


def _last() -> deque[Solution]:
    return deque(maxlen=FINALISTS)


@dataclass
class Found:
    """What a solver found in one run: each better reward and its CPU second, some of the answers,
    the last ones, and the last."""

    curve: list[tuple[float, int]] = field(default_factory=list)
    stages: list[tuple[int, Solution]] = field(default_factory=list)
    last: deque[Solution] = field(default_factory=_last)
    answer: Solution = field(default_factory=lambda: Solution(()))

    def nearly(self) -> float:
        """CPU seconds until the reward was within 3 % of the last one."""
        enough = (1 - NEAR) * self.curve[-1][1]
        return next(spent for spent, reward in self.curve if reward >= enough)


@dataclass(frozen=True)
class Contest:
    """One instance: by solver, a run per seed; what no mapping gains more than, as a share."""

    problem: Problem
    seconds: float
    limit: float
    found: Mapping[str, Sequence[Found]]

    @property
    def total(self) -> int:
        return max(1, self.problem.total)

    def __str__(self) -> str:
        return f"{self.problem.name} N={len(self.problem.buffers)} {self.seconds:g}s"

    def shares(self, solver: str) -> Floats:
        """[seeds] rewards, as parts of all there is to gain."""
        rewards = [f.answer.reward(self.problem) for f in self.found[solver]]
        return np.array(rewards) / self.total

    def simulated(self, solver: str) -> Floats:
        """[seeds] microseconds of a step, with contention."""
        runs = [simulate(self.problem, f.answer, contention=True) for f in self.found[solver]]
        return np.array([run.latency / 1e6 for run in runs])

    @property
    def speedup(self) -> float:
        """Over the XLA-like baseline, simulated."""
        return float(np.median(self.simulated(BASELINE)) / np.median(self.simulated(OURS)))

    def stages(self) -> list[Solution]:
        """Answers from all stages of the searches, from the smallest reward to the largest."""
        every = sorted(
            (x for runs in self.found.values() for f in runs for x in f.stages), key=lambda x: x[0]
        )
        apart: list[tuple[int, Solution]] = []
        for reward, answer in every:
            if not apart or reward - apart[-1][0] >= APART * self.total:
                apart.append((reward, answer))
        at = np.linspace(0, len(apart) - 1, min(STAGES, len(apart))).round().astype(int)
        return [apart[k][1] for k in at]


def run_of(problem: Problem, who: str, seconds: float, seed: int, chosen: Engine) -> Found:
    """One search."""
    found = Found()

    def told(spent: float, reward: int, answer: Solution) -> None:
        found.curve.append((spent, reward))
        found.last.append(answer)
        if not found.stages or reward - found.stages[-1][0] >= APART * problem.total:
            found.stages.append((reward, answer))

    found.answer = solver_of(who)(problem, seconds, seed, told, chosen)
    return found


@dataclass(frozen=True)
class Wanted:
    """What a user asks for, by name or separated by commas; None: as the bench has it."""

    instances: str | None = None
    solvers: str | None = None
    seconds: float | None = None
    seeds: int | None = None

    def among(self, names: Sequence[str], most: int | None) -> tuple[str, ...]:
        """The instances; without a wish `names`, of at most so many buffers."""
        if self.instances is not None:
            return named("mapping", tuple(LIBRARY), self.instances)
        return tuple(n for n in names if most is None or len(instance(n).buffers) <= most)

    def beside(self, peers: Sequence[str]) -> tuple[str, ...]:
        """The solvers."""
        return named("mapping", peers, self.solvers)

    def effort(self, seconds: float, seeds: int) -> tuple[float, int]:
        """CPU seconds of each search, and how many; raises `RecurraError` if there are none."""
        often = seeds if self.seeds is None else self.seeds
        if often < 1:
            raise RecurraError(f"a bench needs a seed, not {often} of them")
        return seconds if self.seconds is None else self.seconds, often


@dataclass(frozen=True)
class Runs:
    """Searches of so many CPU seconds; `out`: where they are kept, in a folder of it."""

    chosen: Engine
    seconds: float
    out: Path | None = None

    def of(self, problem: Problem, who: str, seed: int) -> Found:
        """Kept, or run now."""
        path = self._kept(f"{problem.name}-{who}-{self.seconds:g}s-{seed}.npz")
        about = self._about(problem)
        if path is not None and path.exists() and (kept := read(path, problem, about)) is not None:
            return kept
        found = run_of(problem, who, self.seconds, seed, self.chosen)
        if path is not None:
            path.parent.mkdir(exist_ok=True)
            write(path, problem, about, found)
        share = found.answer.reward(problem) / max(1, problem.total)
        progress(f"{problem.name}, {who}, {self.seconds:g} s, seed {seed}: {share:.4f}")
        return found

    def limit(self, problem: Problem) -> float:
        """What no mapping gains more than, as a share; kept, too."""
        path, about = self._kept(f"{problem.name}-bound.json"), self._about(problem)
        kept: dict[str, Any] = {}
        if path is not None and path.exists():
            kept = json.loads(path.read_text())
        if kept.get("about") != about:
            found = bound(problem)
            kept = {"about": about, "share": found.reward / max(1, problem.total), "how": found.how}
            if path is not None:
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(kept))
        return kept["share"]

    def _kept(self, name: str) -> Path | None:
        return None if self.out is None else self.out / "runs" / name

    def _about(self, problem: Problem) -> str:
        size = f"{len(problem.buffers)} buffers, {problem.fast_size} B, {problem.total} ps"
        return f"{problem.name}, {size}, {machine.describe()['cpu']}"


def write(path: Path, problem: Problem, about: str, found: Found) -> None:
    """Keeps what was found."""
    answers = [x for _, x in found.stages] + list(found.last) + [found.answer]
    part = path.with_suffix(".part.npz")
    np.savez_compressed(
        part,
        about=np.array(about),
        spent=np.array([x for x, _ in found.curve], np.float64),
        reward=np.array([x for _, x in found.curve], np.int64),
        staged=np.array([x for x, _ in found.stages], np.int64),
        answers=np.array([_rows(x) for x in answers], np.int64),
    )
    part.replace(path)  # a file that is there is whole


def read(path: Path, problem: Problem, about: str) -> Found | None:
    """What was kept, its answer validated; None if it is of another problem or processor."""
    with np.load(path) as kept:
        if str(kept["about"]) != about:
            return None
        answers = [_answer(rows) for rows in kept["answers"].tolist()]
        staged: list[int] = kept["staged"].tolist()
        curve = zip(kept["spent"].tolist(), kept["reward"].tolist(), strict=True)
        found = Found(list(curve), answer=answers[-1])
    found.stages += zip(staged, answers, strict=False)
    found.last.extend(answers[len(staged) : -1])
    validate(problem, found.answer)
    return found


def _rows(answer: Solution) -> list[tuple[int, int, int, int]]:
    placed = answer.placements
    return [(-1, 0, 0, 0) if p is None else (p.offset, p.start, p.end, p.copied) for p in placed]


def _answer(rows: list[list[int]]) -> Solution:
    return Solution(
        tuple(None if o < 0 else Placement(o, start, end, bool(c)) for o, start, end, c in rows)
    )
