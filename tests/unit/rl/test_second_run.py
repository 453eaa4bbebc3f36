"""A run never takes the place of another: it is refused with the ways out, and nothing is lost."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recurra as rc
from recurra.checkpoint import checkpoint
from recurra.errors import RecurraError
from recurra.report.runs import RunFolder
from recurra.runtime.executable import Executable


def learner(saved: Path | None = None, target: float = 2.0, iterations: int = 9) -> Executable:
    """A line that learns, saved every third iteration."""
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        net = rc.nn.Linear(2, 2, domain=(i,))
        loss = (net(rc.constant([1.0, target])) + rc.uniform((i,))).square().sum()
        loss.backward()
        rc.optim.SGD(net.params, lr=0.1).step()
        if saved is not None:
            net[i % 3 == 0].checkpoint(saved)
        rc.log(loss=loss)
    return ctx.compile({I: iterations}, backend="numpy")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def saved_seeds(folder: Path) -> list[tuple[str, int]]:
    files = checkpoint.saved(folder / "checkpoints")
    return [(p.stem, checkpoint.load(p).meta["seed"]) for p in files]


SECOND: list[Callable[[Path], Any]] = [
    lambda d: learner().run(seed=4, folder=d),
    lambda d: learner().run(seed=3, folder=d),
    lambda d: learner(d).run(seed=4),
    lambda d: learner(d).run(seed=3),
    lambda d: learner(d).run(seed=4, folder=d),
    lambda d: learner(d / "x").run(seed=4, folder=d),
    lambda d: learner(d).run(seed=4, folder=d / "x"),
]


@pytest.mark.parametrize("second", SECOND)
def test_a_second_run_is_refused_and_nothing_is_lost(tmp_path: Path, second: Any):
    folder = tmp_path / "run"
    learner(folder).run(seed=3, folder=folder)
    before = contents(folder)
    with pytest.raises(RecurraError, match=re.escape(f"{folder} holds a run already")) as told:
        second(folder)
    assert f"resume={str(folder)!r}" in str(told.value)
    assert "overwrite=True" in str(told.value)
    assert "--> test_second_run.py" in str(told.value)
    assert contents(folder) == before


def test_every_way_out_that_is_named_works(tmp_path: Path):
    folder = tmp_path / "run"
    program = learner(folder)
    whole = program.run(seed=3, folder=folder)["loss"]
    rest = program.run(resume=folder, folder=folder)["loss"]
    assert rest.tobytes() == whole[6:].tobytes()
    assert [r["step"] for r in RunFolder(folder).rows()] == list(range(1, 10))
    program.run(seed=4, folder=folder, overwrite=True)
    assert saved_seeds(folder) == [("00000003", 4), ("00000006", 4)]
    assert len(RunFolder(folder).rows()) == 9
    assert learner(iterations=2).run(folder=tmp_path / "other")["loss"].shape == (2,)


def test_what_is_overwritten_leaves_nothing_behind(tmp_path: Path):
    """Checkpoints of the old run are not those of the new one, whatever their numbers."""
    learner(tmp_path).run(seed=3)
    learner(tmp_path, iterations=5).run(seed=4, overwrite=True)
    assert saved_seeds(tmp_path) == [("00000003", 4)]


def test_a_run_that_goes_on_goes_back_behind_its_own_only(tmp_path: Path):
    """A copy of a run may go on where the run saves; a run with other draws may not."""
    folder, copy = tmp_path / "run", tmp_path / "copy"
    program = learner(folder)
    whole = program.run(seed=3, folder=folder)["loss"]
    shutil.copytree(folder, copy)
    first = copy / "checkpoints" / "00000003.safetensors"
    rest = program.run(resume=first, folder=copy)["loss"]
    assert rest.tobytes() == whole[3:].tobytes()
    other = tmp_path / "other"
    learner(other).run(seed=5, folder=other)
    before = contents(folder)
    with pytest.raises(RecurraError, match=r"(?s)run holds a run already.*the seed 5, not 3"):
        program.run(resume=other)
    with pytest.raises(RecurraError, match=r"(?s)run holds a run already.*the seed 5, not 3"):
        learner().run(resume=(3, {}), seed=5, folder=folder)
    assert contents(folder) == before
    rest = program.run(resume=other, folder=folder, overwrite=True)["loss"]
    assert (len(rest), RunFolder(folder).rows()[0]["step"], saved_seeds(folder)) == (3, 7, [])


def test_a_run_that_came_to_nothing_may_be_begun_again(tmp_path: Path):
    def fails(*_: Any) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        learner().run(seed=3, folder=tmp_path, on_step=fails)
    assert len(RunFolder(tmp_path).rows()) > 0  # its first rows are there: they are kept
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        rc.log(x=rc.call(fails, rc.f32, rc.value(i)))
    program = ctx.compile({I: 2}, backend="numpy")
    for _ in range(2):
        with pytest.raises(Exception, match="no"):
            program.run(folder=tmp_path / "empty")


def test_new_runs_are_not_made_inside_of_others(tmp_path: Path):
    run = RunFolder.create(tmp_path, "E", "a", 0)
    assert RunFolder.create(tmp_path, "E", "a", 0).path != run.path
    with pytest.raises(RecurraError, match="is the folder of a run") as told:
        RunFolder.create(run.path, "E", "a", 0)
    assert f"--out {tmp_path};" in str(told.value)
    assert f"--resume {run.path}" in str(told.value)


def test_two_begin_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The one that comes second is refused, also where both have looked before."""
    mine = RunFolder.begin(tmp_path)
    monkeypatch.setattr(RunFolder, "holds", lambda self: ["metrics.jsonl"] * seen.pop())
    seen = [1, 0]
    with pytest.raises(RecurraError, match="holds a run already"):
        RunFolder.begin(tmp_path)
    assert mine.rows() == []


def test_a_run_that_is_too_short_to_save_leaves_others_alone(tmp_path: Path):
    learner(tmp_path).run(seed=3)
    before = contents(tmp_path)
    learner(tmp_path, iterations=2).run(seed=4)
    assert contents(tmp_path) == before
