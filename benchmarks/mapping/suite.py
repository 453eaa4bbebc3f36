"""Memory mapping: the default solver beside the others on real models, at equal CPU time.

Every answer is validated before it counts. `reward_share` is the part of all there is to gain, its
limit a proven bound; `simulated_us` is a step on the simulator with contention; `correlation` says
how well rewards tell its latencies (table 5 of the paper: -1 is ideal); `nearly_s` are CPU seconds
until the default solver is within 3 % of its last answer. The part `steps` counts random steps of
the game per CPU second, in the native engine beside the Python one; `execute` runs answers for
real: `execute.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row, progress
from benchmarks.mapping.runs import BASELINE, OURS, Contest, Found, Runs, Wanted
from benchmarks.pairs import ratio
from benchmarks.parts import named
from recurra.mapping.engine_choice import Engine, engine
from recurra.mapping.model_library import LIBRARY, instance
from recurra.mapping.simulate import correlation
from recurra.mapping.solvers.default import fastest_finalist
from recurra.mapping.struct_of_arrays import flat
from recurra.storage.mapping_problem import Problem, Solution

PARTS = ("solve", "steps", "execute")
PEERS = ("xla-like", "greedy", "random", "evolution", "annealing", "priority", "lns", "mcts")
SECONDS, QUICK_SECONDS = 16.0, 1.0
SEEDS, QUICK_SEEDS = 5, 2
QUICK_BUFFERS = 800


def suite(
    quick: bool = False,
    out: Path | None = None,
    learn: bool = False,
    only: str | None = None,
    **wanted: Any,
) -> list[Row]:
    """Rows per instance and peer; `quick`: small instances, short searches.

    `out`: a folder for the page, the pictures of figures 5, 6 and 8, and every search. `learn`:
    agents that learn, instead. `only`: some of the parts. `wanted`: instances, solvers, seconds,
    seeds, as `runs.Wanted` takes them.
    """
    from benchmarks.mapping import learning

    if learn:
        return learning.suite(quick, out, Wanted(**wanted))
    parts, asked = named("mapping", PARTS, only), Wanted(**wanted)
    rows = solved(quick, out, asked) if "solve" in parts else []
    if "steps" in parts:
        for name in asked.among(tuple(LIBRARY), QUICK_BUFFERS if quick else None):
            rows += steps(instance(name), engine())
    if "execute" in parts:
        from benchmarks.mapping.execute import executed

        rows += executed(quick, asked)
    return rows


def solved(quick: bool, out: Path | None, wanted: Wanted) -> list[Row]:
    """Rewards and simulated steps; a seed after the other of all instances."""
    from benchmarks.mapping import tables
    from benchmarks.mapping.figures import expect_room, write

    if out is not None:
        expect_room(out)
    names = wanted.among(tuple(LIBRARY), QUICK_BUFFERS if quick else None)
    peers = wanted.beside(PEERS)
    seconds, seeds = wanted.effort(*((QUICK_SECONDS, QUICK_SEEDS) if quick else (SECONDS, SEEDS)))
    runs = Runs(engine(), seconds, out)
    progress(runs.chosen.description)
    found: dict[str, dict[str, list[Found]]] = {}
    for seed in range(seeds):
        for name in names:
            search(instance(name), peers, seed, runs, found.setdefault(name, {}))
    contests = [Contest(instance(n), seconds, runs.limit(instance(n)), found[n]) for n in names]
    rows = [row for c in contests for row in solvers(c)]
    if out is not None:
        text = (tables.solved(contests), tables.beside(contests))
        (out / "mapping.md").write_text("\n".join(text))
        write(out, contests, rows)
    return rows


def search(
    problem: Problem, peers: Sequence[str], seed: int, runs: Runs, found: dict[str, list[Found]]
) -> None:
    """A run of everybody. `prod` is what the solver `prod` makes of two of these."""
    one = {who: runs.of(problem, who, seed) for who in dict.fromkeys((OURS, BASELINE, *peers))}
    mine = one[OURS]
    used = fastest_finalist(problem, [*mine.last, mine.answer], one[BASELINE].answer)
    for who, x in {**one, "prod": Found(answer=used)}.items():
        found.setdefault(who, []).append(x)


def solvers(contest: Contest) -> list[Row]:
    """Rewards, simulated steps and their correlation; one pair per seed."""
    rows: list[Row] = []
    mine = float(np.median(contest.shares(OURS)))
    for peer in [who for who in contest.found if who not in (OURS, "prod")]:
        middle, ci95 = ratio(contest.shares(peer), contest.shares(OURS))  # more is better
        theirs = float(np.median(contest.shares(peer)))
        rows.append(
            Row(
                str(contest),
                "reward_share",
                mine,
                peer,
                theirs,
                middle,
                ci95,
                contest.limit,
                "exact",
            )
        )
        progress(f"{contest}: {mine:.4f} of at most {contest.limit:.4f}, {peer} {theirs:.4f}")
    base = contest.simulated(BASELINE)
    for name in (OURS, "prod"):
        run = contest.simulated(name)
        middle, ci95 = ratio(run, base)
        ours_us, theirs = float(np.median(run)), float(np.median(base))
        who = "xla-like, of prod" if name == "prod" else "xla-like"
        rows.append(
            Row(str(contest), "simulated_us", ours_us, who, theirs, middle, ci95, None, "exact")
        )
        progress(f"{contest}: {name} {ours_us:.1f} µs, xla-like {theirs:.1f} µs")
    near = np.array([run.nearly() for run in contest.found[OURS]])
    middle, ci95 = ratio(near, np.full(len(near), contest.seconds))
    mine = float(np.median(near))
    rows.append(
        Row(
            str(contest),
            "nearly_s",
            mine,
            "the whole search",
            contest.seconds,
            middle,
            ci95,
            None,
            "exact",
        )
    )
    told = correlation(contest.problem, contest.stages())
    if np.isfinite(told):
        rows.append(
            Row(
                str(contest),
                "correlation",
                told,
                "ideal",
                -1.0,
                -told,
                (-told, -told),
                None,
                "exact",
            )
        )
        progress(f"{contest}: rewards and latencies correlate by {told:.4f}")
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
