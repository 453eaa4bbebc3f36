"""memory=: a program fits a budget where more of it may be computed twice, and says when not."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from numpy_memory import counted
from recurra import fitting
from recurra.amounts import parse
from recurra.bench.ppo import ours as ppo
from recurra.bench.ppo.work import Work
from recurra.errors import PlanError
from recurra.executable import Executable
from recurra.fitting import HELD, ROWS, ways

WORK = Work(B=64, T=50)


def program(backend: str = "numpy", **options: Any) -> Executable:
    """PPO, whose networks are wider than what they see."""
    return ppo.program(WORK, 2, backend=backend, **options)


@cache
def free() -> tuple[int, np.ndarray]:
    """What it takes without a budget, and what it earns."""
    p = program()
    return p.memory.nbytes, p.run()["reward"]


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
    assert ("by held=" in told) == (part < 1)
    assert told.endswith("as it is") == (part > 1)


def test_jax_learns_the_same_within_it() -> None:
    most = program("jax").memory.nbytes
    p = program("jax", memory=most * 8 // 10)
    assert p.memory.nbytes <= most * 8 // 10
    np.testing.assert_allclose(p.run()["reward"], free()[1], rtol=1e-4)


def test_what_fits_in_no_way_is_refused_with_the_least_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting, "ways", lambda _: [{}, {"held": HELD[0]}])
    with pytest.raises(PlanError, match="more than memory=1,000") as refused:
        program(memory=1000)
    least = str(refused.value).split('memory="')[1].split('"')[0]
    assert program(held=HELD[0]).memory.nbytes <= parse(least) <= 0.7 * free()[0]


def test_what_the_user_decides_is_not_decided_anew() -> None:
    every = list(ways({}))
    assert every[0] == {}
    assert len(every) == 1 + len(HELD) + len(ROWS)
    assert all("held" not in x for x in ways({"held": 1.0}))
    assert list(ways({"held": 1.0, "rows": 64})) == [{}]
