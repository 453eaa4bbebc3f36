"""Islands: a program cut at its loops, each timed beside what the cost model says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recurra.codegen.host_program import HostLoop
from recurra.codegen.launch_size import items_ns
from recurra.codegen.lowering import lower
from recurra.cost.prices import of_machine
from recurra.rl.recipes import Reinforce
from recurra.rl.train import train
from recurra.runtime.host_executor import Execution
from recurra.schedule.tree import members
from small_learner import learner


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_every_loop_of_a_step_is_told_of(backend: str) -> None:
    program = learner(backend)
    x = np.linspace(0, 1, 8, dtype="f4").reshape(4, 2)
    found = program.islands(inputs={"x": x}, steps=3)
    names = [island.name for island in found]
    assert {"i / t", "i / t backwards", "i"} <= set(names)
    assert all(island.measured > 0 for island in found)
    (loop,) = (it for it in program.compiled.schedule.loops() if it.dim == "i")
    told = [s for island in found for s in island.statements]
    assert sorted(told) == sorted(s for s in members(loop.body) if s in told)
    want = items_ns(program.compiled.plan, loop.body, of_machine(backend)) / 1e6
    predicted = sum(island.predicted for island in found)  # what the host hands on costs nothing
    assert 0.98 * want < predicted <= want * (1 + 1e-9)
    row = found[0].row
    assert row["island"] == names[0]
    assert set(row) >= {"predicted ms", "measured ms"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_program_in_islands_computes_the_same(backend: str) -> None:
    program = learner(backend)
    x = {"x": np.linspace(0, 1, 8, dtype="f4").reshape(4, 2)}
    main = program.compiled.program.main
    assert main is not None
    cut = lower(program.compiled.plan, split_loop=main.loop.id)
    assert any(isinstance(it, HostLoop) for it in cut.items)
    steps = Execution(cut, program.backend).steps(3, inputs=x)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
    want = program.run(seed=3, inputs=x)["loss"]
    np.testing.assert_allclose(found[program.outputs["loss"]], want, rtol=1e-5)


def test_islands_of_a_mesh() -> None:
    found = learner("numpy", workers=2).islands(inputs={"x": np.ones((4, 2), "f4")}, steps=2)
    assert any(island.name == "i / t" for island in found)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_a_report_shows_them(tmp_path: Path) -> None:
    settings = Reinforce(env="CartPole-v1", iterations=3, rows=2, steps=8, out=tmp_path)
    told = train(replace(settings, islands=True))
    page = Path(told["report"]).read_text()
    assert "predicted ms" in page
    assert "i / t" in page
    plain = train(replace(settings, backend="numpy"))
    assert "predicted ms" not in Path(plain["report"]).read_text()
