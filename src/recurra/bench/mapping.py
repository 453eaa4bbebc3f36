"""Memory mapping: the default solver beside the others on real models, at equal CPU time.

Every answer is validated before it counts. `reward_share` is the part of all there is to gain, its
limit a proven bound; `simulated_us` is a step on the simulator with contention; `correlation` says
how well rewards tell its latencies (table 5 of the paper: -1 is ideal); `steps_per_s` are random
steps of the game per CPU second, in the native engine beside the Python one. The part `execute`
runs answers for real: `mapping_execute.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recurra.bench.harness import Row, progress
from recurra.bench.pairs import ratio
from recurra.bench.parts import named
from recurra.mapping.bounds import bound
from recurra.mapping.engines import Engine, engine
from recurra.mapping.flat import flat
from recurra.mapping.library import LIBRARY, instance
from recurra.mapping.simulate import correlation, simulate
from recurra.mapping.solvers import solver_of
from recurra.memory.problem import Problem, Solution

PARTS = ("solve", "execute")
OURS = "default"
PEERS = ("xla-like", "greedy", "random", "evolution", "annealing", "priority", "lns", "mcts")
SECONDS, QUICK_SECONDS = 8.0, 1.0
SEEDS, QUICK_SEEDS = 5, 2
QUICK_BUFFERS = 800
STAGES = 10  # of how many answers rewards and latencies are compared: section 5.3
APART = 0.01  # of what there is to gain: how much better the next of them is
Floats = NDArray[np.float64]


def ours(problem: Problem, seconds: float, seed: int, chosen: Engine) -> Solution:
    """The solver that is measured."""
    return solver_of(OURS)(problem, seconds, seed, None, chosen)


@dataclass
class Found:
    """What a solver found in one run: each better reward and its CPU second, some of the answers,
    the last."""

    curve: list[tuple[float, int]] = field(default_factory=list)
    stages: list[tuple[int, Solution]] = field(default_factory=list)
    answer: Solution = field(default_factory=lambda: Solution(()))


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
        return float(np.median(self.simulated("xla-like")) / np.median(self.simulated(OURS)))

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


def suite(
    _: object = None,
    quick: bool = False,
    out: Path | None = None,
    learn: bool = False,
    only: str | None = None,
) -> list[Row]:
    """Rows per instance and peer; `quick`: small instances, short searches.

    `out`: a folder for the page and the pictures of figures 5, 6 and 8. `learn`: agents that learn,
    instead. `only`: some of the parts.
    """
    from recurra.bench import mapping_learning

    if learn:
        return mapping_learning.suite(quick, out)
    parts = named("mapping", PARTS, only)
    rows = solved(quick, out) if "solve" in parts else []
    if "execute" in parts:
        from recurra.bench.mapping_execute import executed

        rows += executed(quick)
    return rows


def solved(quick: bool, out: Path | None) -> list[Row]:
    """Rewards, simulated steps, speed of the game."""
    from recurra.bench.mapping_figures import expect_room, write

    if out is not None:
        expect_room(out)
    chosen = engine()
    progress(chosen.told)
    rows: list[Row] = []
    contests: list[Contest] = []
    for name in LIBRARY:
        problem = instance(name)
        if not quick or len(problem.buffers) <= QUICK_BUFFERS:
            contests.append(contest(problem, chosen, quick))
            rows += [*solvers(contests[-1]), *steps(problem, chosen)]
            if out is not None:  # also what there is of a bench that is cut short
                write(out, contests, rows)
    return rows


def contest(problem: Problem, chosen: Engine, quick: bool) -> Contest:
    """Runs every solver, once per seed."""
    seconds, seeds = (QUICK_SECONDS, QUICK_SEEDS) if quick else (SECONDS, SEEDS)
    found = {
        who: [run_of(problem, who, seconds, seed, chosen) for seed in range(seeds)]
        for who in (OURS, *PEERS, "prod")
    }
    limit = bound(problem).reward / max(1, problem.total)
    return Contest(problem, seconds, limit, found)


def run_of(problem: Problem, who: str, seconds: float, seed: int, chosen: Engine) -> Found:
    """One search."""
    found = Found()

    def told(spent: float, reward: int, answer: Solution) -> None:
        found.curve.append((spent, reward))
        if not found.stages or reward - found.stages[-1][0] >= APART * problem.total:
            found.stages.append((reward, answer))

    found.answer = solver_of(who)(problem, seconds, seed, told, chosen)
    return found


def solvers(c: Contest) -> list[Row]:
    """Rewards, simulated steps and their correlation; one pair per seed."""
    rows: list[Row] = []
    mine = float(np.median(c.shares(OURS)))
    for peer in PEERS:
        middle, ci95 = ratio(c.shares(peer), c.shares(OURS))  # more is better
        theirs = float(np.median(c.shares(peer)))
        rows.append(Row(str(c), "reward_share", mine, peer, theirs, middle, ci95, c.limit, "exact"))
        progress(f"{c}: {mine:.4f} of at most {c.limit:.4f}, {peer} {theirs:.4f}")
    base = c.simulated("xla-like")
    for name in (OURS, "prod"):
        run = c.simulated(name)
        middle, ci95 = ratio(run, base)
        ours_us, theirs = float(np.median(run)), float(np.median(base))
        who = "xla-like, of prod" if name == "prod" else "xla-like"
        rows.append(Row(str(c), "simulated_us", ours_us, who, theirs, middle, ci95, None, "exact"))
        progress(f"{c}: {name} {ours_us:.1f} µs, xla-like {theirs:.1f} µs")
    told = correlation(c.problem, c.stages())
    if np.isfinite(told):
        rows.append(
            Row(str(c), "correlation", told, "ideal", -1.0, -told, (-told, -told), None, "exact")
        )
        progress(f"{c}: rewards and latencies correlate by {told:.4f}")
    return rows


def steps(problem: Problem, chosen: Engine) -> list[Row]:
    """Random steps per CPU second, one second of the engine and one of the Python one in turns."""
    draws = np.random.default_rng(0).integers(0, 6, 10007)
    f, python = flat(problem), engine("python")
    games = [chosen.game(f), python.game(f)]
    rates = np.empty((3, 2))
    for k in range(len(rates)):
        for j, game in enumerate(games):
            count, start = 0, time.process_time()
            while (spent := time.process_time() - start) < 0.5:
                game.reset()
                count += game.play_random(draws)
            rates[k, j] = count / spent
    ends: list[Solution] = []
    for game in games:
        game.reset()
        game.play_random(draws)
        ends.append(game.solution())
    assert ends[0] == ends[1], "the engines do not play the same game"
    middle, ci95 = ratio(rates[:, 1], rates[:, 0])
    mine, theirs = (float(x) for x in np.median(rates, axis=0))
    case = f"{problem.name} N={len(problem.buffers)}"
    progress(f"{case}: {mine:,.0f} steps per CPU second, Python {theirs:,.0f}")
    return [Row(case, "steps_per_s", mine, "Python engine", theirs, middle, ci95, None, "exact")]
