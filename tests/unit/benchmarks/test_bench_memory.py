"""The bench of memory: programs that compute the same, and memory_limit that hold."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.harness import check
from benchmarks.memory import memory_limit
from benchmarks.memory.memory_limit import Limit, limited
from benchmarks.memory.published_schemes_jax import purejaxrl
from benchmarks.memory.published_schemes_torch import cleanrl
from benchmarks.memory.recurra_program import contestant, program, shuffled
from benchmarks.memory.suite import FREED
from benchmarks.memory.workload import SEED, Work
from benchmarks.process import Ended, Process
from compiled_once import each_once
from documents import ROOT, SUPPORT
from memory_holder import HOLDS
from recurra.cost.thresholds import BUDGET_MEMORY_PRICES, BUDGET_TILE_ROWS
from recurra.runtime import executable, memory_budget

SMALL = Work(side=16, B=2, T=6)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("n", [0, 6])
def test_every_scheme_computes_what_ours_does(n: int) -> None:
    work = replace(SMALL, n=n)
    here = contestant(work)
    answer = here.answer()
    for them in (purejaxrl(work), cleanrl(work)):
        assert check((here, answer), (them, them.answer())) == "exact"


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_a_program_made_to_fit_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """By recomputing in small tiles; other ways are not tried."""
    least = {"memory_price": BUDGET_MEMORY_PRICES[-1], "tile_rows": BUDGET_TILE_ROWS[-1]}
    monkeypatch.setattr(executable, "Executable", each_once())
    monkeypatch.setattr(memory_budget, "recompute_candidates", lambda _: [least])
    monkeypatch.setattr(memory_budget, "offload_candidates", lambda *_: [])
    work = Work(side=64, B=4, T=32)
    here = contestant(work)
    free = program(work, 2, gradients=True, launch_steps=1, backend="jax").memory.nbytes
    fitted = contestant(replace(work, memory=str(free * 2 // 3)))
    assert check((here, here.answer()), (fitted, fitted.answer())) == "exact"


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_shuffled_samples_from_a_disk_are_those_in_memory() -> None:
    work = replace(SMALL, epochs=2, minibatches=3)
    here, moved = contestant(work), contestant(replace(work, offload="disk"))
    assert "4 epochs" in str(replace(work, epochs=4))
    answer = here.answer()
    assert check((here, answer), (moved, moved.answer())) == "exact"
    plain = shuffled(work, 2, gradients=True, backend="numpy").run(seed=SEED)
    for name in work.shapes:
        x = answer[f"d_{name}"]
        np.testing.assert_allclose(plain[f"d_{name}"][0], x, rtol=1e-4, atol=1e-6, err_msg=name)


def started(limit: Limit) -> Process:
    folder = {"PYTHONPATH": str(SUPPORT)}
    found = Process("memory_holder:Holder", SMALL, 1, before=limit.before, env=folder)
    limit.watch(found.process.pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [True, False])
def test_the_system_ends_who_takes_more_and_nobody_else(
    grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not grouped:  # where no cgroup can be made
        monkeypatch.setattr(memory_limit, "made", lambda nbytes: None)
    with limited(HOLDS // 2) as low, pytest.raises(Ended), started(low) as process:
        process.run(1)
    with limited(8 * HOLDS) as high, started(high) as process:
        process.run(1)
    assert (low.killed, high.killed) == (True, False)
    assert HOLDS < high.most < 3 * HOLDS


TRAINS = """
import runpy, sys
of = runpy.run_path(sys.argv[1])
bounds = {of["B"]: 16, of["I"]: 2, of["T"]: int(sys.argv[2])}
fits = {"memory": "16MiB", "memory_price": 1.0, "tile_rows": 512}  # in memory, or on a disk
of["ctx"].compile(bounds, **(fits if sys.argv[3] == "fit" else {})).run()
"""


def trained(steps: int, how: str, nbytes: int = 0) -> Limit:
    example = str(ROOT / "examples" / "big_observations.py")
    with limited(nbytes) as limit:
        command = [*limit.before, sys.executable, "-c", TRAINS, example, str(steps), how]
        process = subprocess.Popen(command, env={**os.environ, **FREED})
        limit.watch(process.pid)
        code = process.wait()
        limit.read()
    assert limit.killed == (code != 0)
    return limit


@pytest.mark.slow
def test_the_example_trains_under_a_limit_that_ends_it_otherwise() -> None:
    most = trained(2, "fit").most + 60_000_000
    assert not trained(140, "fit", most).killed
    assert trained(140, "keep", most).killed
