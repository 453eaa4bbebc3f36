"""`recurra bench learning`: does PPO learn, within CleanRL's steps, and as well as its scheme?

The score of a run is the mean return of its last hundred episodes; of a program, the mean over
seeds, with the 95 % interval of Student's t. Times are not taken: a busy machine does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks import machine
from benchmarks.harness import Checked, Disagreement, Row, progress
from benchmarks.learning.curves import picture
from benchmarks.learning.runs import PROGRAMS, Run, learn
from benchmarks.learning.settings import Settings
from benchmarks.worker import in_worker

GOALS = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0}
SEEDS = (1, 2, 3, 4, 5)
QUICK_SEEDS, QUICK_TOTAL = (1, 2), 100_000
OUT = Path("runs/learning")
OURS, CLEANRL = PROGRAMS

F64 = NDArray[np.float64]


def suite(quick: bool = False, out: Path = OUT) -> list[Row]:
    """All rows; every episode of every run is kept in `out`, and a picture of them."""
    seeds, total = (QUICK_SEEDS, QUICK_TOTAL) if quick else (SEEDS, Settings().total)
    asked = [
        {"who": who, "env": env, "seeds": seeds, "total": total}
        for env in GOALS
        for who in PROGRAMS
    ]
    with ThreadPoolExecutor(machine.cores()) as pool:
        found = [run for part in pool.map(_in_process, asked) for run in part]
    keep(found, out)
    return rows(found)


def _in_process(asked: Mapping[str, Any]) -> list[Run]:
    return [Run(**fields) for fields in in_worker(learn, asked, threads=machine.cores())]


def keep(runs: Sequence[Run], out: Path) -> None:
    """episodes.json and curves.svg."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "episodes.json").write_text(json.dumps([asdict(run) for run in runs]))
    (out / "curves.svg").write_text(picture(runs, GOALS))
    progress(f"curves: {out / 'curves.svg'}")


def rows(runs: Sequence[Run]) -> list[Row]:
    """Per environment: our score beside its goal, and beside that of CleanRL's scheme."""
    found: list[Row] = []
    for env in dict.fromkeys(run.env for run in runs):
        us, them = ([r for r in runs if (r.who, r.env) == (who, env)] for who in PROGRAMS)
        how = same_work(us, them)
        case = f"{env}, {len(us)} seeds of {us[0].steps:,} steps"
        mine, theirs = (np.array([run.score for run in side]) for side in (us, them))
        goal, mean = GOALS[env], float(theirs.mean())
        found.append(_row(case, mine, goal, "goal", interval(mine), how))
        found.append(_row(case, mine, mean, CLEANRL, interval(mine, theirs), how))
        for name, side in ((OURS, mine), (CLEANRL, theirs)):
            low, high = interval(side)
            each = ", ".join(f"{score:.1f}" for score in side)
            progress(f"{case}: {name}: {side.mean():.1f} [{low:.1f}, {high:.1f}] of {each}")
    return found


def _row(
    case: str, ours: F64, theirs: float, peer: str, ends: tuple[float, float], how: Checked
) -> Row:
    low, high = (better(end, theirs) for end in ends)
    mean = float(ours.mean())
    ratio = better(mean, theirs)
    return Row(case, "mean_return", mean, peer, theirs, ratio, (low, high), None, how)


def same_work(us: Sequence[Run], them: Sequence[Run]) -> Checked:
    """Both took as many steps and trained as many numbers, or `Disagreement`."""
    counts = [{(run.steps, run.parameters) for run in side} for side in (us, them)]
    if counts[0] != counts[1]:
        raise Disagreement(
            f"{us[0].env}: {us[0].who} and {them[0].who} do not do the same work",
            facts=f"(steps, trained numbers) are {counts[0]} and {counts[1]}",
        )
    return "work"


def better(x: float, than: float) -> float:
    """x / than where returns are rewards, than / x where both are costs: above 1, x is better."""
    return than / x if x < 0 and than < 0 else x / than


def interval(scores: F64, *others: F64) -> tuple[float, float]:
    """The 95 % interval of the mean of a few runs; with `others`, of how far it is from theirs."""
    sides = (scores, *others)
    error = np.sqrt(sum(side.var(ddof=1) / len(side) for side in sides))
    half = float(stats.t.ppf(0.975, min(map(len, sides)) - 1) * error)  # Welch, fewest degrees
    return float(scores.mean()) - half, float(scores.mean()) + half
