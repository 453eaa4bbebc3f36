"""A recorded run says when launches, the environment and moves were, in its second stretch."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory.recurra_program import program
from benchmarks.memory.workload import Work

WORK = Work(side=64, B=4, T=24, n=24)
Rows = list[dict[str, Any]]


def recorded(folder: Path, backend: str, **options: Any) -> Rows:
    made = program(WORK, 3, launch_steps=1, backend=backend, **options)
    alone = made.run()["reward"]
    assert (made.run(folder=folder)["reward"] == alone).all()
    assert (made.run()["reward"] == alone).all()  # nobody looks any more
    return json.loads((folder / "compiled.json").read_text())["launches"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_every_step_is_there(backend: str, tmp_path: Path) -> None:
    rows = recorded(tmp_path, backend)
    steps = [r for r in rows if r["phase"] == "environment"]
    assert len(steps) == WORK.T
    assert {r["phase"] for r in rows} == {"environment", "launch"}
    assert all(0 <= r["start"] <= r["stop"] for r in rows)
    calls = [(r["start"], r["stop"]) for r in steps]
    assert all(a[1] <= b[0] for a, b in pairwise(calls))
    assert "Launches" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_moves_are_beside_launches(tmp_path: Path) -> None:
    rows = recorded(tmp_path, "jax", offload="disk")
    moves = [r["statement"] for r in rows if r["phase"] == "copy"]
    assert moves.count("o written") == WORK.T
    assert set(moves) == {"o written", "o read"}
