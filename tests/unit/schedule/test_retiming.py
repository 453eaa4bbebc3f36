"""Shifts that hold the fewest bytes, beside a linear program; and legal ones."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy.optimize import linprog

from documents import env
from recurra.polyhedral.dependence_distance import Lag
from recurra.schedule.retiming import retime

Lags = Sequence[tuple[str, str, Lag]]


def by_linear_program(nodes: Sequence[str], lags: Lags, weight: Mapping[str, float]) -> float:
    """min Σ weight · lifetime, where no statement runs ahead of what it reads."""
    size, rows, ends = 2 * len(nodes), [], []
    place = {n: k for k, n in enumerate(nodes)}
    for source, sink, lag in lags:
        row = np.zeros((2, size))
        row[:, place[source]] += 1, -1
        row[:, place[sink]] -= 1, -1
        row[1, len(nodes) + place[source]] = -1
        rows += [row[0], row[1]]
        ends += [lag.low, -float(lag.high or 0)]
    cost = np.array([0.0] * len(nodes) + [weight[n] for n in nodes])
    found = linprog(cost, A_ub=np.array(rows), b_ub=np.array(ends), bounds=[(0, None)] * size)
    assert found.status == 0
    return float(found.fun)


def held(shift: Mapping[str, int], lags: Lags, weight: Mapping[str, float]) -> float:
    life = dict.fromkeys(shift, 0)
    for source, sink, lag in lags:
        life[source] = max(life[source], shift[sink] - shift[source] + (lag.high or 0))
    return sum(weight[n] * steps for n, steps in life.items())


@pytest.mark.parametrize("seed", range(40))
def test_the_fewest_bytes_are_held(seed: int) -> None:
    pick = random.Random(seed)
    nodes = [f"n{k}" for k in range(pick.choice([2, 5, 12, 40]))]
    lags = [(nodes[0], nodes[1], Lag(-1, -1))]  # where nothing must move nothing does
    for _ in range(pick.randint(1, 3 * len(nodes))):
        source, sink = sorted(pick.sample(range(len(nodes)), 2))  # no cycles
        low = pick.choice([-100, -3, -1, 0, 0, 1, 2])
        lags.append((nodes[source], nodes[sink], Lag(low, low + pick.choice([0, 0, 1, 5, 90]))))
    weight = {n: pick.choice([0.0, 1.0, 4.0, 64.0, 4096.0, 1e6]) for n in nodes}
    shift = retime(nodes, lags, weight)
    assert all(shift[sink] >= shift[source] - (lag.low or 0) for source, sink, lag in lags)
    assert min(shift.values()) == 0
    best = by_linear_program(nodes, lags, weight)
    assert held(shift, lags, weight) == pytest.approx(best, rel=1e-6, abs=1e-3)


def test_what_costs_nothing_runs_early() -> None:
    lags = [("a", "b", Lag(-3, -3)), ("a", "c", Lag(0, 0))]
    assert retime("abc", lags, dict.fromkeys("abc", 0.0)) == {"a": 0, "b": 3, "c": 0}


def test_compiling_needs_no_scipy() -> None:
    """Its import would be half of the time of a small program's first compilation."""
    text = """
import sys
import recurra as rc

ctx = rc.Context(dims="t")
with ctx as (t, T):
    x = rc.like(rc.f32[64], (t,))
    x[0] = rc.ones(64)
    x[t + 1] = (x * 0.9).tanh()
    rc.output(y=x[t : rc.min(t + 3, T)].sum(), z=(x - x[0:T].mean()).square().sum())
ctx.compile({T: 50}, backend="numpy").run()
assert "scipy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", text], check=True, env=env())
