"""Figures 8, 9 and 11: searches at equal limits of time, and the policy, on sizes held out.

Time is process CPU, as the machine may be busy.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from benchmarks.harness import progress
from benchmarks.looptune.sizes import SEARCHES
from recurra.nest import catalogue
from recurra.nest.actions import PAPER, Actions
from recurra.nest.agents.policy import GreedyPolicy, bundled_policy, load
from recurra.nest.loops import Nest, untiled
from recurra.nest.measure import Evaluator, measure_in_turns, verify_kernel
from recurra.nest.problem import NestProblem
from recurra.nest.search import FoundNest, search_nests, strategy
from recurra.nest.target import VectorTarget, runnable

POLICY = "policy"


def searched(size: tuple[int, int, int], limit: float) -> dict[str, Any]:
    """What every search finds within `limit` seconds, and where the policy ends; all of them
    measured again in turns, after their answers have been checked.
    """
    p, on = catalogue.matmul(*size), runnable()[0]
    nests, spent = {"untiled": untiled(p)}, {"untiled": 0.0}
    for name in SEARCHES:
        found = alone(name, untiled(p), on, PAPER, limit)
        nests[name], spent[name] = found.nest, found.seconds
    if (policy := known(on)) is not None:
        nests[POLICY], spent[POLICY] = proposed(policy, p)
    for nest in nests.values():
        verify_kernel(nest, on)
    standings = measure_in_turns(list(nests.values()), on)
    rows = {
        name: {"gflops": x.gflops, "of_peak": x.of_peak, "seconds": spent[name]}
        for name, x in zip(nests, standings, strict=True)
    }
    best = max(rows, key=lambda name: rows[name]["gflops"])
    progress(f"{called(size)}: {best} is best, {rows[best]['gflops']:.0f} GFLOPS")
    return {"size": called(size), "rows": rows}


def deepened(size: tuple[int, int, int], limit: float, actions: tuple[int, ...]) -> dict[str, Any]:
    """GFLOPS that each search reaches with so many actions at most, and the seconds it takes."""
    p, on = catalogue.matmul(*size), runnable()[0]
    rows: dict[str, list[tuple[int, float, float]]] = {}
    for name in SEARCHES:
        nests, spent = list[Nest](), list[float]()
        for count in actions:
            rules = replace(PAPER, steps=count)
            found = alone(name, untiled(p), on, rules, limit)
            nests.append(found.nest)
            spent.append(found.seconds)
        gflops = [x.gflops for x in measure_in_turns(nests, on)]
        rows[name] = list(zip(actions, gflops, spent, strict=True))
        progress(f"{called(size)}: {name}, {gflops[-1]:.0f} GFLOPS with {actions[-1]} actions")
    if (policy := known(on)) is not None:
        nests, seconds = paced(policy, p)
        steps = [k for k in actions if k < len(nests)]
        gflops = [x.gflops for x in measure_in_turns([nests[k] for k in steps], on)]
        rows[POLICY] = list(zip(steps, gflops, [seconds[k] for k in steps], strict=True))
    return {"size": called(size), "rows": rows}


def alone(name: str, start: Nest, on: VectorTarget, actions: Actions, limit: float) -> FoundNest:
    """What a search finds within so much process CPU, with nothing measured before."""
    evaluate, clock = Evaluator(start.problem, on), time.process_time
    return search_nests(strategy(name), start, evaluate, actions, seconds=limit, clock=clock)


def known(on: VectorTarget) -> GreedyPolicy | None:
    """The policy that comes with the package, if there is one for this machine."""
    return load(path) if (path := bundled_policy(on)) is not None else None


def learned_from() -> set[str]:
    """Sizes that had a part in the policy: no figure shows them."""
    policy = known(runnable()[0])
    return {x for part in ("learnt", "choosing") for x in policy.about[part]} if policy else set()


def proposed(policy: GreedyPolicy, problem: NestProblem) -> tuple[Nest, float]:
    """Where it ends, and the seconds that this takes: nothing is measured."""
    nests, seconds = paced(policy, problem)
    return nests[-1], seconds[-1]


def paced(policy: GreedyPolicy, problem: NestProblem) -> tuple[list[Nest], list[float]]:
    """The nests after every action, and the seconds until then."""
    policy.path(catalogue.matmul(16, 16, 16))  # imports are not timed
    seconds = [0.0]
    for k in range(1, policy.actions.steps + 1):
        start = time.process_time()
        policy.path(problem, k)
        seconds.append(max(seconds[-1], time.process_time() - start))
    return policy.path(problem), seconds


def called(size: tuple[int, int, int]) -> str:
    return "x".join(map(str, size))
