"""memory=: a program fits a budget where more of it may be computed twice, and says when not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.ppo import recurra_program as ppo
from benchmarks.ppo.workload import Work
from compiled_once import each_once
from numpy_memory import counted
from offloaded_learner import learner
from random_cases import QUICK
from recurra.compiler.options import CompileOptions
from recurra.cost.prices import PRICES
from recurra.cost.thresholds import BUDGET_MEMORY_PRICES, BUDGET_TILE_ROWS
from recurra.errors import PlanError
from recurra.runtime import executable, memory_budget
from recurra.runtime.executable import Executable
from recurra.runtime.memory_budget import offload_candidates, recompute_candidates
from recurra.storage.offload import Offload, stores_to_offload
from recurra.support.byte_units import parse

WORK = Work(B=64, T=50)
PPO, LEARNERS, PICTURES = (each_once() for _ in range(3))


def program(backend: str = "numpy", **options: Any) -> Executable:
    """PPO, whose networks are wider than what they see."""
    with mock.patch.object(executable, "Executable", PPO):
        return ppo.program(WORK, 2, backend=backend, single_launch=False, **options)


@cache
def free() -> tuple[int, np.ndarray]:
    """What it takes without a budget, and what it earns."""
    p = program()
    return p.memory.nbytes, p.run()["reward"]


@pytest.mark.slow
@pytest.mark.parametrize("part", [2.0, 0.7])
def test_no_more_is_allocated_than_the_budget(part: float) -> None:
    most, rewards = free()
    p = program(memory=f"{int(part * most) // 1024}KiB")
    np.testing.assert_allclose(p.run()["reward"], rewards, rtol=1e-5)
    with counted() as count:
        p.run()
    assert count.peak <= part * most
    told = p.compiled.stages.decisions[-1]
    assert told.startswith(f"memory: {p.memory.nbytes:,} of ")
    assert ("by memory_price=" in told) == (part < 1)
    assert told.endswith("as it is") == (part > 1)


@pytest.mark.slow
@settings(QUICK, max_examples=4)
@given(st.floats(0.2, 1.05))
def test_within_random_budgets(part: float) -> None:
    """The same losses in no more than the budget, or a refusal that names one that does."""
    with mock.patch.object(executable, "Executable", LEARNERS):
        tried(part)


def tried(part: float) -> None:
    free = learner()
    budget = int(part * free.memory.nbytes)
    try:
        p = learner(memory=budget)
    except PlanError as error:
        least = parse(
            str(error).partition("least budget known to do is ")[2].split(";")[0].split()[0]
        )
        assert budget < least < free.memory.nbytes
        return
    np.testing.assert_allclose(p.run()["loss"], free.run()["loss"], rtol=1e-5)
    with counted() as count:
        p.run()
    assert p.memory.nbytes <= budget
    assert count.peak <= 1.05 * budget


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_jax_learns_the_same_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory alone."""
    monkeypatch.setattr(memory_budget, "offload_candidates", lambda *_: [])
    most = program("jax").memory.nbytes
    p = program("jax", memory=most * 8 // 10)
    assert p.memory.nbytes <= most * 8 // 10
    np.testing.assert_allclose(p.run()["reward"], free()[1], rtol=1e-4)


@pytest.mark.slow
def test_what_fits_in_no_way_is_refused_with_the_least_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        memory_budget, "recompute_candidates", lambda _: [{"memory_price": BUDGET_MEMORY_PRICES[0]}]
    )
    monkeypatch.setattr(memory_budget, "offload_candidates", lambda *_: [])
    with pytest.raises(PlanError, match="alone take") as refused:
        program(memory=1000)  # before any way is tried
    budget = 1 + int(str(refused.value).split("alone take ")[1].split()[0].replace(",", ""))
    with pytest.raises(PlanError, match=f"more than memory={budget:,}") as refused:
        program(memory=budget)
    least = str(refused.value).split('memory="')[1].split('"')[0]
    assert (
        program(memory_price=BUDGET_MEMORY_PRICES[0]).memory.nbytes
        <= parse(least)
        <= 0.75 * free()[0]
    )


def test_what_the_user_decides_is_not_decided_anew() -> None:
    assert len(list(recompute_candidates(CompileOptions()))) == len(BUDGET_MEMORY_PRICES) + len(
        BUDGET_TILE_ROWS
    )
    assert all(
        "memory_price" not in x
        for x in recompute_candidates(CompileOptions.from_keywords({"memory_price": 1.0}))
    )
    assert (
        list(
            recompute_candidates(
                CompileOptions.from_keywords({"memory_price": 1.0, "tile_rows": 64})
            )
        )
        == []
    )
    plan = pictures().compiled.plan
    every = list(stores_to_offload(plan, Offload(least=0)))
    found = list(offload_candidates(CompileOptions(), plan))
    held = [x.get("memory_price") for x in found]
    assert held == [*[None] * (len(found) - 1), BUDGET_MEMORY_PRICES[-1]]
    tried = [
        x["offload"].stores
        for x in offload_candidates(CompileOptions.from_keywords({"memory_price": 1.0}), plan)
    ]
    assert tried == [tuple(every[:k]) for k in (1, 2, 4, 5)]
    assert every[0] == "o"
    for decided in ({"offload": "host"}, {"workers": 2}, {"check": "nan"}):
        assert list(offload_candidates(CompileOptions.from_keywords(decided), plan)) == []


def pictures(backend: str = "numpy", **options: Any) -> Executable:
    """Whose observations are most of what is kept: 4.7 MB of them."""
    given: dict[str, Any] = {"memory_price": 1.0, "tile_rows": 512, "single_launch": False}
    with mock.patch.object(executable, "Executable", PICTURES):
        return learner(backend, picture=(3, 32, 32), **{**given, **options})


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_pictures_go_to_the_disk(backend: str) -> None:
    """Nothing else saves as much: they come from outside, and cannot be computed again."""
    free = pictures(backend)
    budget = free.memory.nbytes - (2 << 20)
    p = pictures(backend, memory=budget)
    assert p.memory.nbytes <= budget
    assert "by o on a disk" in p.compiled.stages.decisions[-1]
    np.testing.assert_allclose(p.run(seed=3)["loss"], free.run(seed=3)["loss"], rtol=1e-5)
    if backend == "numpy":
        with counted() as count:
            p.run(seed=3)
        assert count.peak <= budget


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_small_program_is_swapped_too(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its largest store is 9 KB."""
    monkeypatch.setattr(executable, "Executable", each_once())
    free = learner(backend, memory_price=1.0, tile_rows=0)
    offloaded = learner(backend, memory_price=1.0, tile_rows=0, offload=Offload(least=0))
    assert offloaded.memory.nbytes < free.memory.nbytes
    p = learner(backend, memory_price=1.0, tile_rows=0, memory=offloaded.memory.nbytes)
    assert p.memory.nbytes <= offloaded.memory.nbytes
    assert " on a disk" in p.compiled.stages.decisions[-1]
    np.testing.assert_allclose(p.run(seed=3)["loss"], free.run(seed=3)["loss"], rtol=1e-5)


@pytest.mark.slow
def test_what_cannot_be_met_is_refused_with_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "Executable", each_once())
    with pytest.raises(PlanError, match="more than memory=1,024") as refused:
        learner("numpy", memory_price=1.0, tile_rows=0, memory="1KiB")
    least = parse(str(refused.value).rpartition('memory="')[2].rpartition('"')[0])
    assert learner("numpy", memory_price=1.0, tile_rows=0, memory=least).memory.nbytes <= least


@pytest.mark.slow
def test_what_is_cheapest_is_taken_and_the_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways that hold as much, of which a byte costs more or less."""
    budget = pictures().memory.nbytes - (1 << 20)
    for tier, find in (("host", "recompute_candidates"), ("disk", "offload_candidates")):
        ways = [{"offload": Offload(tier, stores=("o",))}]  # pyright: ignore[reportArgumentType]
        monkeypatch.setattr(memory_budget, find, lambda *_, ways=ways: ways)
    for ns, chosen, other in ((1e4, "host", "disk"), (1e-4, "disk", "host")):
        p = pictures(memory=budget, prices=replace(PRICES, disk=ns))
        how, _, others = p.compiled.stages.decisions[-1].partition("; ")
        assert how.endswith(f"by o on a {chosen}")
        assert others.startswith(f"o on a {other} would take ")
        assert others.endswith("times as long")
