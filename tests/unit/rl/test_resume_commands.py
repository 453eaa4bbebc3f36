"""Every line that training tells its user to type works when it is pasted, for every algorithm."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from compiled_once import forget
from documents import env
from recurra.checkpoint import checkpoint
from recurra.cli import main
from recurra.frontend.context import Context
from recurra.report.runs import RunFolder
from recurra.runtime.executable import Executable

TINY = ["--rows", "2", "--steps", "4", "--hidden", "4", "--checkpoint-every", "3"]
ALGORITHMS = {
    "reinforce": TINY,
    "ppo": [*TINY, "--epochs", "1", "--minibatches", "1"],
}
EVERY = [(algo, backend) for algo in ALGORITHMS for backend in ("numpy", "jax")]


def train(algo: str, out: Path, *options: str) -> list[str]:
    return ["train", algo, *ALGORITHMS[algo], "--out", str(out), *options]


def folder_of(out: Path) -> Path:
    (folder,) = out.iterdir()
    return folder


def learned(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, less what depends on the clock."""
    clocks = ("time", "charts/SPS")
    return [{k: v for k, v in r.items() if k not in clocks} for r in RunFolder(folder).rows()]


def told(text: str) -> list[str]:
    """The command that a message tells its user to type."""
    (line,) = (x for x in text.splitlines() if "go on with: " in x)
    command = shlex.split(line.split("go on with: ")[1])
    assert command[0] == "recurra"
    return command[1:]


def interrupt_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, as it comes when a row of metrics is written."""
    log = RunFolder.log

    def stopped(self: RunFolder, at: int, **scalars: Any) -> None:
        if at == step:
            raise KeyboardInterrupt
        log(self, at, **scalars)

    patch.setattr(RunFolder, "log", stopped)


@pytest.fixture(scope="module")
def programs() -> dict[str, Executable]:
    return {}


@pytest.fixture
def compiled_once(monkeypatch: pytest.MonkeyPatch, programs: dict[str, Executable]) -> None:
    """Commands of this module share their programs, whose hosts hold nothing at first."""

    def compiled(backend: str, ctx: Context, bounds: dict[Any, int]) -> Executable:
        key = f"{backend} {bounds} {ctx.graph}"
        if key not in programs:
            programs[key] = ctx.compile(bounds, backend=backend)
        forget(programs[key])
        return programs[key]

    monkeypatch.setattr("recurra.rl.train._compile", compiled)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla", "compiled_once", "program_cache")
@pytest.mark.parametrize(("algo", "backend"), EVERY)
def test_hints_work_when_they_are_pasted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    algo: str,
    backend: str,
):
    """Stopped twice, moved to a copy, gone on with to its end, and beyond."""
    how = ["--backend", backend, "--iterations", "8"]
    assert main(train(algo, tmp_path / "whole", *how)) == 0
    whole = learned(folder_of(tmp_path / "whole"))
    for k, step in enumerate((5, 7)):
        with pytest.MonkeyPatch.context() as patch:
            interrupt_at(step, patch)
            command = told(capsys.readouterr().err) if k else train(algo, tmp_path / "a run", *how)
            assert main(command) == 130
    command = told(capsys.readouterr().err)
    first = folder_of(tmp_path / "a run")
    copy = tmp_path / "copy"
    shutil.copytree(first, copy)
    assert main(command) == 0
    assert main(["train", algo, "--resume", str(copy)]) == 0
    assert learned(first) == learned(copy) == whole
    assert [r["step"] for r in whole] == list(range(1, 9))
    capsys.readouterr()
    assert main(command) == 2  # it has all its iterations
    assert main(told(capsys.readouterr().err)) == 0
    assert [r["step"] for r in learned(first)] == list(range(1, 17))
    assert learned(first)[:8] == whole
    assert RunFolder(first).read_config()["iterations"] == 16
    said = capsys.readouterr().err
    assert ("resumed with other numbers" in said) == (algo == "ppo")  # its rate falls to 0


def test_a_run_that_was_stopped_before_it_had_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        interrupt_at(3, patch)
        how = ["--backend", "numpy", "--iterations", "4"]
        assert main(train("reinforce", tmp_path, *how, "--checkpoint-every", "4")) == 130
    assert len(learned(folder_of(tmp_path))) == 2
    assert main(told(capsys.readouterr().err)) == 0
    assert "has no checkpoint yet: it begins again" in capsys.readouterr().err
    assert [r["step"] for r in learned(folder_of(tmp_path))] == [1, 2, 3, 4]


@pytest.mark.slow
def test_settings_are_those_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """What differs is refused, also where it is the default; the same may be said again."""
    how = ["--backend", "numpy", "--iterations", "3", "--lr", "0.02"]
    assert main(train("reinforce", tmp_path, *how)) == 0
    run = str(folder_of(tmp_path))
    for option, value, theirs in (("--lr", "0.01", "0.02"), ("--backend", "jax", "numpy")):
        assert main(["train", "reinforce", "--resume", run, option, value]) == 2
        said = capsys.readouterr().err
        assert f"the run in {run} has {option} {theirs}" in said
    more = ["--iterations", "5", "--lr", "0.02", "--seed", "1"]
    assert main(["train", "reinforce", "--resume", run, *more]) == 0
    assert len(learned(Path(run))) == 5
    assert main(["train", "ppo", "--resume", run]) == 2
    assert told(capsys.readouterr().err) == ["train", "reinforce", "--resume", run]
    assert main(["train", "ppo", "--resume", run, "--iterations", "7"]) == 2
    assert main(told(capsys.readouterr().err)) == 0
    assert len(learned(Path(run))) == 7


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["the file", "its last row", "the tag"])
def test_steps_that_metrics_do_not_tell_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str
):
    how = ["--backend", "numpy", "--iterations", "3", "--checkpoint-every", "1"]
    assert main(train("reinforce", tmp_path, *how)) == 0
    run = folder_of(tmp_path)
    rows = run.joinpath("metrics.jsonl").read_text()
    left = {
        "the file": "",
        "its last row": "".join(rows.splitlines(keepends=True)[:-1]),
        "the tag": rows.replace("global_step", "steps"),
    }[lost]
    run.joinpath("metrics.jsonl").write_text(left)
    capsys.readouterr()
    assert main(["train", "reinforce", "--resume", str(run), "--iterations", "4"]) == 0
    assert "does not tell the steps of the environment until iteration 3" in capsys.readouterr().err


DAMAGES = {
    "none": None,
    "torn": '{"env": "CartP',
    "a list": "[1]",
    "a word for a number": '{"algo": "reinforce", "rows": "two"}',
    "a fraction for a count": '{"algo": "reinforce", "rows": 2.5}',
    "a number for widths": '{"algo": "reinforce", "hidden": 4}',
    "no text at all": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_settings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str):
    text = DAMAGES[damage]
    if text is not None:
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "config.json").write_bytes(data)
    assert main(["train", "reinforce", "--resume", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "damaged" in said or "has no config.json" in said
    assert "Traceback" not in said


# As from a terminal, also where who started us ignores Ctrl-C.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from recurra.cli import main
sys.exit(main())
"""


def done(out: Path) -> int:
    """Iterations of the only run of a folder that are saved."""
    saved = (checkpoint.saved(folder / "checkpoints") for folder in out.glob("*"))
    return max((int(path.stem) for paths in saved for path in paths), default=0)


def started(command: list[str], out: Path) -> subprocess.Popen[str]:
    """A run in a process of its own that has saved, and goes on for longer than a test."""
    before, pipe, theirs = done(out), subprocess.PIPE, env(PYTHONUNBUFFERED="1")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *command],
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=theirs,
    )
    for _ in range(1200):
        if process.poll() is not None:
            break
        if done(out) > before:
            return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate()[1])


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_run_goes_on_after_a_signal(tmp_path: Path, algo: str):
    """After Ctrl-C by the command that it tells, which is killed, and then to its end."""
    how = ["--backend", "numpy", "--iterations", "100000"]
    process = started(train(algo, tmp_path, *how), tmp_path)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    process = started(told(said), tmp_path)
    process.kill()
    process.communicate(timeout=60)
    run, last = folder_of(tmp_path), done(tmp_path) + 2
    assert main(["train", algo, "--resume", str(run), "--iterations", str(last)]) == 0
    rows = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == list(range(1, last + 1))
