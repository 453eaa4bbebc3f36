"""Memory mapping: the default solver beside the others on real models, at equal CPU time.

Every answer is validated before it counts. `reward_share` is the part of all there is to gain, its
limit a proven bound; `simulated_us` is a step on the simulator with contention; `steps_per_s` are
random steps of the game per CPU second, in the native engine beside the Python one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recurra.bench.harness import Row, progress
from recurra.bench.pairs import ratio
from recurra.mapping.bounds import bound
from recurra.mapping.engines import Engine, engine
from recurra.mapping.flat import flat
from recurra.mapping.library import LIBRARY, instance
from recurra.mapping.simulate import simulate
from recurra.mapping.solvers import solver_of
from recurra.memory.problem import Problem, Solution

PEERS = ("xla-like", "greedy", "random", "evolution", "annealing", "priority", "lns", "mcts")
SECONDS, QUICK_SECONDS = 8.0, 1.0
SEEDS, QUICK_SEEDS = 5, 2
QUICK_BUFFERS = 800
Floats = NDArray[np.float64]


def ours(problem: Problem, seconds: float, seed: int, chosen: Engine) -> Solution:
    """The solver that is measured."""
    return solver_of("default")(problem, seconds, seed, None, chosen)


def suite(_: object = None, quick: bool = False) -> list[Row]:
    """Rows per instance and peer; `quick`: small instances, short searches."""
    chosen = engine()
    progress(chosen.told)
    rows: list[Row] = []
    for name in LIBRARY:
        problem = instance(name)
        if not quick or len(problem.buffers) <= QUICK_BUFFERS:
            rows += solvers(problem, chosen, quick)
            rows += steps(problem, chosen)
    return rows


def solvers(problem: Problem, chosen: Engine, quick: bool) -> list[Row]:
    """Rewards and simulated steps of one instance; one pair per seed."""
    seconds, seeds = (QUICK_SECONDS, QUICK_SEEDS) if quick else (SECONDS, SEEDS)
    total = max(1, problem.total)
    limit = bound(problem).reward / total
    answers = {"ours": [ours(problem, seconds, seed, chosen) for seed in range(seeds)]}
    for peer in (*PEERS, "prod"):
        solve = solver_of(peer)
        answers[peer] = [solve(problem, seconds, seed, None, chosen) for seed in range(seeds)]
    shares = {k: np.array([s.reward(problem) for s in v]) / total for k, v in answers.items()}
    case = f"{problem.name} N={len(problem.buffers)} {seconds:g}s"
    rows: list[Row] = []
    for peer in PEERS:
        middle, ci95 = ratio(shares[peer], shares["ours"])  # more is better
        mine, theirs = (float(np.median(shares[k])) for k in ("ours", peer))
        rows.append(Row(case, "reward_share", mine, peer, theirs, middle, ci95, limit, "exact"))
        progress(f"{case}: {mine:.4f} of at most {limit:.4f}, {peer} {theirs:.4f}")
    base = simulated(problem, answers["xla-like"])
    for name in ("ours", "prod"):
        run = simulated(problem, answers[name])
        middle, ci95 = ratio(run, base)
        mine, theirs = float(np.median(run)), float(np.median(base))
        who = "xla-like" if name == "ours" else "xla-like, of prod"
        rows.append(Row(case, "simulated_us", mine, who, theirs, middle, ci95, None, "exact"))
        progress(f"{case}: {name} {mine:.1f} µs, xla-like {theirs:.1f} µs")
    return rows


def simulated(problem: Problem, solutions: Sequence[Solution]) -> Floats:
    """Microseconds of a step, with contention."""
    return np.array([simulate(problem, s, contention=True).latency / 1e6 for s in solutions])


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
