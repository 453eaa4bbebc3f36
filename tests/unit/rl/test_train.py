"""Training leaves a run folder that can be looked at, and gone on with, at any time."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import recurra as rc
from recurra import cli
from recurra.checkpoint import checkpoint
from recurra.errors import RecurraError
from recurra.report.runs import RunFolder
from recurra.rl.recipes import Reinforce
from recurra.rl.train import train
from recurra.tools.interpreted_run import InterpretedProgram

Callback = Callable[..., None]
SMALL = Reinforce(iterations=10, rows=2, steps=3, checkpoint_every=4, hidden=(4,))


class Fake:
    """A program whose state is a running sum of what it logs; launches are of three iterations."""

    schedule_text, source = "for i in 0..I-1: act(i)", "def region(x): return x"
    preflight, contraction_rows = None, ()

    def __init__(self, iterations: int, fail_at: int | None = None):
        self.iterations, self.fail_at = iterations, fail_at
        self.equations = {"trace": "x: f32[] = const(value=1.0)"}
        self.store_rows = [{"store": "W", "kind": "circular", "class": "carried", "bytes": 8}]
        self.pass_rows = [{"name": "canonicalize", "before": 9, "after": 7, "ms": 0.5}]
        self.chart = [{"statement": "act", "start": 0, "stop": 3, "phase": "acting"}]
        self.saver = self

    def save(self, folder: Path, step: Any, seed: int) -> None:
        meta = {"counters": {"i": step.hi}, "seed": seed}
        checkpoint.save(folder, step.variables, meta, number=step.hi)

    def load(self, path: Path) -> Any:
        found = checkpoint.load(path)
        return (found.meta["counters"]["i"], found.arrays), found.meta["seed"]

    def run(
        self, seed: int, *, on_step: Callback, on_state: Callback, resume: tuple[int, Any] | None
    ) -> None:
        first, state = resume or (0, {"total": np.zeros(())})
        self.total = state["total"]
        for at in range(first, self.iterations, 3):
            if self.fail_at is not None and at >= self.fail_at:
                raise KeyboardInterrupt
            hi = min(at + 3, self.iterations)
            values = np.arange(at, hi) + 0.5
            self.total = self.total + values.sum() * seed
            on_step(at, {"mean_return": values, "length": values, "loss": -values})
            on_state(SimpleNamespace(lo=at, hi=hi, variables={"total": self.total}))


def quietly(settings: Reinforce, program: Any) -> dict[str, Any]:
    with redirect_stderr(io.StringIO()):
        return train(settings, lambda ctx, bounds: program)


def test_a_run_is_written(tmp_path: Path):
    result = quietly(replace(SMALL, out=tmp_path), Fake(10))
    run = RunFolder(result["run"])
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(1, 11))
    assert [row["charts/episodic_return"] for row in rows] == [k + 0.5 for k in range(10)]
    assert rows[4]["losses/policy_loss"] == -4.5
    assert all(row["charts/SPS"] > 0 for row in rows)
    assert result["charts/episodic_return"] == 9.5
    config = run.read_config()
    assert (config["env"], config["algo"], config["seed"]) == ("CartPole-v1", "reinforce", 1)
    assert config["hidden"] == [4]
    assert "out" not in config
    page = run.report.read_text()
    for text in (
        "reinforce · CartPole-v1",
        "episodic_return",
        "for",
        "canonicalize",
        "acting",
        "rows",
    ):
        assert text in page


def test_checkpoints_keep_the_state(tmp_path: Path):
    run = quietly(replace(SMALL, out=tmp_path), Fake(10))["run"]
    saved = checkpoint.saved(Path(run) / "checkpoints")
    metas = [checkpoint.load(path).meta for path in saved]
    assert [m["counters"]["i"] for m in metas] == [6, 9, 10]  # launches end at 3, 6, 9, 10
    assert checkpoint.load(saved[-1]).arrays["total"] == sum(k + 0.5 for k in range(10))


def test_resume_goes_on_where_it_stopped(tmp_path: Path):
    settings = replace(SMALL, out=tmp_path)
    with pytest.raises(RecurraError, match="--resume"):
        quietly(settings, Fake(10, fail_at=9))
    (path,) = tmp_path.iterdir()
    before = RunFolder(path)
    assert len(before.rows()) == 9
    assert before.report.exists()
    whole = Fake(10)
    quietly(settings, whole)
    part = Fake(10)
    result = quietly(Reinforce(iterations=10, resume=path), part)
    assert result["run"] == str(path)
    assert [row["step"] for row in RunFolder(path).rows()] == list(range(1, 11))
    np.testing.assert_array_equal(part.total, whole.total)


def test_a_resumed_run_goes_on_in_its_folder_alone(tmp_path: Path):
    path = Path(quietly(replace(SMALL, out=tmp_path), Fake(10))["run"])
    with pytest.raises(RecurraError, match="but --out runs was given"):
        quietly(replace(SMALL, resume=path, out=Path("runs"), iterations=12), Fake(12))
    for out in (None, path, tmp_path):
        with pytest.raises(RecurraError, match="has all its 10 iterations"):
            quietly(replace(SMALL, resume=path, out=out), Fake(10))


def test_a_full_disk_is_told_by_what_could_not_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The page cannot be written either, and says nothing."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "report.html")

    failing = Fake(10)
    failing.saver.save = full
    monkeypatch.setattr("recurra.rl.train.write_page", full)
    with pytest.raises(OSError, match="No space left") as e:
        quietly(replace(SMALL, out=tmp_path), failing)
    assert any(x.name == "state" for x in e.traceback)
    with pytest.raises(RecurraError, match="interrupted"):
        quietly(replace(SMALL, out=tmp_path), Fake(10, fail_at=9))


def test_what_cannot_be_resumed(tmp_path: Path):
    settings = replace(SMALL, out=tmp_path)
    path = Path(quietly(settings, Fake(10))["run"])
    with pytest.raises(RecurraError, match="has all its 10 iterations"):
        quietly(replace(settings, resume=path), Fake(10))
    with pytest.raises(RecurraError, match="\n  --iterations 4 counts those that it has, too\n"):
        quietly(replace(settings, resume=path, iterations=4), Fake(10))
    with pytest.raises(RecurraError, match=r"but --lr 0\.5 was given"):
        quietly(replace(settings, resume=path, lr=0.5), Fake(10))
    with pytest.raises(RecurraError, match="there is no run at"):
        quietly(replace(settings, resume=tmp_path / "no"), Fake(10))


def test_the_program_runs(tmp_path: Path):
    settings = replace(SMALL, out=tmp_path, iterations=2, rows=2, steps=4)
    with redirect_stderr(io.StringIO()):
        result = train(settings, InterpretedProgram)
    first, last = RunFolder(result["run"]).rows()
    assert (first["step"], last["step"]) == (1, 2)
    assert first["charts/episodic_return"] == first["charts/episodic_length"] == 4.0
    assert last["losses/entropy"] == pytest.approx(np.log(2), abs=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla", "program_cache")
@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_one_iteration_is_saved_and_gone_on_with(
    tmp_path: Path,
    backend: str,
    capsys: pytest.CaptureFixture[str],
):
    """A dim of one point is no loop, after which nothing lives on: it is compiled for two."""
    small = replace(SMALL, backend=backend)
    one = Path(train(replace(small, iterations=1, out=tmp_path / "one"))["run"])
    assert [row["step"] for row in RunFolder(one).rows()] == [1]
    assert [path.name for path in checkpoint.saved(one / "checkpoints")] == ["00000001.safetensors"]
    assert rc.rl.load(one).act(np.zeros(4), greedy=True) in (0, 1)
    more = Path(train(replace(small, iterations=3, resume=one))["run"])
    assert "begins again" not in capsys.readouterr().err
    whole = Path(train(replace(small, iterations=3, out=tmp_path / "whole"))["run"])
    kept, wanted = (
        [(row["step"], row["losses/policy_loss"]) for row in RunFolder(run).rows()]
        for run in (more, whole)
    )
    assert kept == wanted
    for file in ("policy.safetensors", "checkpoints/00000003.safetensors"):
        a, b = (load_file(run / file) for run in (more, whole))
        assert {name: x.tobytes() for name, x in a.items()} == {
            name: x.tobytes() for name, x in b.items()
        }


def test_unknown_environment(tmp_path: Path):
    with pytest.raises(RecurraError, match="cannot make NoSuch-v0"):
        train(replace(SMALL, env="NoSuch-v0", out=tmp_path), InterpretedProgram)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_it_trains_with_torch(tmp_path: Path):
    done = train(replace(SMALL, out=tmp_path, backend="torch"))
    meant = train(replace(SMALL, out=tmp_path, backend="numpy"))
    assert np.isclose(done["losses/policy_loss"], meant["losses/policy_loss"], rtol=1e-4)
    run = Path(done["run"])
    with pytest.raises(RecurraError, match="a resumed run keeps its settings, but --backend "):
        train(replace(SMALL, iterations=12, resume=run, backend="numpy"))
    assert train(replace(SMALL, iterations=12, resume=run))["run"] == done["run"]


def test_a_run_that_goes_on_does_so_in_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = Path(train(replace(SMALL, out=tmp_path), InterpretedProgram)["run"])
    elsewhere = tmp_path / "elsewhere"
    words = ["train", "reinforce", "--resume", str(run), "--iterations", "9"]
    assert cli.main([*words, "--out", str(elsewhere)]) == 2
    said = capsys.readouterr().err
    assert f"goes on in its folder, but --out {elsewhere} was given" in said
    assert f"its folder is {run}" in said
    assert not elsewhere.exists()
