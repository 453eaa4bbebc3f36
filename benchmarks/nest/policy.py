"""The shipped policy on sizes held out: alone, beside the best nest that an episode reaches; with a
search that goes on from its nest, beside every search of the paper in as much time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from benchmarks.harness import Row, progress
from benchmarks.looptune.searches import alone
from benchmarks.looptune.sizes import SEARCHES
from recurra.nest import catalogue
from recurra.nest.actions import PAPER, Actions
from recurra.nest.agents.policy import GreedyPolicy, bundled_policy, load
from recurra.nest.loops import Nest, untiled
from recurra.nest.measure import Evaluator, Protocol, measure_in_turns, measure_peak, verify_kernel
from recurra.nest.measured_table import tabulate
from recurra.nest.problem import NestProblem
from recurra.nest.quick_search import improve_nest
from recurra.nest.target import VectorTarget, runnable
from recurra.nest.tune import tune_nest

LIMIT_MS = 20.0
BUDGETS = (0.01, 0.1, 1.0)  # seconds of process CPU
MORE = ("beam4dfs", "random")  # searches of the reference with all factors


def beside_searches(count: int) -> list[dict[str, Any]]:
    """A row per budget and search, of medians over sizes; and of policy and search beside the
    oracle. None without a policy.
    """
    return _rows(count, BUDGETS, PAPER, 0.0)


def beside_long(count: int, seconds: float) -> list[dict[str, Any]]:
    """The same with all factors and tiles, as `recurra tune` has them, and at the longest budget
    beside the best of so many seconds of several searches.
    """
    return _rows(count, BUDGETS, Actions(), seconds)


def _rows(
    count: int, budgets: Sequence[float], actions: Actions, seconds: float
) -> list[dict[str, Any]]:
    on = runnable()[0]
    if (path := bundled_policy(on)) is None:
        return []
    policy = load(path)
    found: dict[tuple[float, str], list[tuple[float, float]]] = {}
    for words in policy.about["telling"][:count]:
        p = catalogue.matmul(*map(int, words.split("x")))
        reference = _long(p, on, seconds) if seconds else _oracle(policy, p, on)
        for budget in budgets:
            gflops = _searched(policy, p, on, budget, actions, reference)
            ours = gflops.pop("policy")
            for name, theirs in gflops.items():
                found.setdefault((budget, name), []).append((ours, theirs))
            best = max(x for name, x in gflops.items() if name in SEARCHES)
            found.setdefault((budget, "the best of them"), []).append((ours, best))
            progress(f"policy and {budget:g} s, {words}: {ours:.0f} GFLOPS; {_best(gflops)}")
    kind = f", all factors, {seconds:g} s" if seconds else ""
    return [asdict(_against(budget, name, x, on, kind)) for (budget, name), x in found.items()]


def _searched(
    policy: GreedyPolicy,
    problem: NestProblem,
    on: VectorTarget,
    budget: float,
    actions: Actions,
    reference: Nest,
) -> dict[str, float]:
    """GFLOPS of what each finds in so much time, all measured again in turns."""
    policy.path(catalogue.matmul(16, 16, 16))  # imports are not timed
    start = time.process_time()
    begin = policy.path(problem)[-1]
    left = budget - (time.process_time() - start)
    tiled = actions is not PAPER
    nests = {"policy": improve_nest(begin, on, seconds=left, actions=actions, tiled=tiled)}
    nests |= {name: alone(name, untiled(problem), on, actions, budget).nest for name in SEARCHES}
    nests["reference"] = reference
    for nest in nests.values():
        verify_kernel(nest, on)
    standings = measure_in_turns(list(nests.values()), on, rounds=15)
    return {name: x.gflops for name, x in zip(nests, standings, strict=True)}


def _long(problem: NestProblem, on: VectorTarget, seconds: float) -> Nest:
    """The best of so many seconds: half of them as `recurra tune` spends them, the rest for two
    more searches, with all factors; the last has what those that end by themselves leave.
    Finalists are measured again in turns.
    """
    start = time.process_time()
    nests = [tune_nest(problem, on, seconds=seconds / 2).nest]
    for name, share in zip(MORE, (0.5, 1.0), strict=True):
        left = seconds - (time.process_time() - start)
        nests.append(alone(name, untiled(problem), on, Actions(), max(0.0, share * left)).nest)
    standings = measure_in_turns(nests, on, rounds=15)
    return nests[int(np.argmax([x.gflops for x in standings]))]


def _best(gflops: Mapping[str, float]) -> str:
    name = max((n for n in gflops if n != "reference"), key=lambda n: gflops[n])
    return f"{name} {gflops[name]:.0f}, reference {gflops['reference']:.0f}"


def _against(
    budget: float, name: str, pairs: list[tuple[float, float]], on: VectorTarget, kind: str
) -> Row:
    ours, theirs = (float(np.median(x)) for x in zip(*pairs, strict=True))
    ratios = [a / b for a, b in pairs]
    case = f"policy and search, {budget * 1e3:g} ms{kind}, median of {len(pairs)} sizes {on} 1T"
    ends, ratio = (min(ratios), max(ratios)), float(np.median(ratios))
    return Row(case, "gflops", ours, name, theirs, ratio, ends, None, "exact")


def policies(count: int) -> list[dict[str, Any]]:
    """A row per size, the median of them, and what the policy takes; none without a policy.

    The best nest is found by measuring every one within an episode, then again in turns with the
    policy's: picked as the fastest of hundreds, it was also the luckiest.
    """
    on = runnable()[0]
    if (path := bundled_policy(on)) is None:
        return []
    policy = load(path)
    sizes = [tuple(map(int, words.split("x"))) for words in policy.about["telling"][:count]]
    rows, times = list[Row](), list[float]()
    for m, k, n in sizes:
        row, ms = _beside_the_oracle(policy, catalogue.matmul(m, k, n), on)
        rows.append(row)
        times.append(ms)
        progress(f"{row.case}: {row.ours:.0f} GFLOPS, {row.ratio:.2f} of the oracle, {ms:.1f} ms")
    return [asdict(row) for row in [*rows, _median(rows), _time(times, on)]]


def _beside_the_oracle(
    policy: GreedyPolicy, problem: NestProblem, on: VectorTarget
) -> tuple[Row, float]:
    start = time.process_time()
    nest = policy.path(problem)[-1]
    ms = (time.process_time() - start) * 1e3
    verify_kernel(nest, on)
    best = _oracle(policy, problem, on)
    us, them, plain = measure_in_turns([nest, best, untiled(problem)], on, rounds=9)
    share = us.gflops / them.gflops
    size = "x".join(str(x) for _, x in problem.sizes)
    case = f"policy alone, {us.gflops / plain.gflops:.1f} times untiled, {size} {on} 1T"
    limit = us.gflops / us.of_peak
    row = Row(
        case, "gflops", us.gflops, "oracle", them.gflops, share, (share, share), limit, "exact"
    )
    return row, ms


def _oracle(policy: GreedyPolicy, problem: NestProblem, on: VectorTarget) -> Nest:
    evaluate = Evaluator(problem, on, Protocol(seconds=0.0005))
    table = tabulate(problem, policy.actions, evaluate, measure_peak(on))
    return table.nest(int(table.gflops.argmax()))


def _median(rows: list[Row]) -> Row:
    ratio = float(np.median([row.ratio for row in rows]))
    ends = (min(row.ratio for row in rows), max(row.ratio for row in rows))
    ours, theirs = (float(np.median([getattr(r, x) for r in rows])) for x in ("ours", "theirs"))
    case = f"policy alone, median of {len(rows)} sizes held out"
    return replace(rows[0], case=case, ours=ours, theirs=theirs, ratio=ratio, ci95=ends, limit=None)


def _time(times: list[float], on: VectorTarget) -> Row:
    middle = float(np.median(times))
    ratio = LIMIT_MS / middle
    case = f"policy alone, a nest is proposed, {on} 1T"
    ends = (LIMIT_MS / max(times), LIMIT_MS / min(times))
    return Row(case, "call_ms", middle, "its limit", LIMIT_MS, ratio, ends, None, "none")
