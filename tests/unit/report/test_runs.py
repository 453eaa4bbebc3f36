"""The run folder: what is logged is read back, also after a kill, a torn line, a full disk."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import RecurraError
from recurra.report import runs
from recurra.report.run_page import write_page
from recurra.report.runs import RunFolder, read_metrics


def test_name_follows_cleanrl(tmp_path: Path):
    run = RunFolder.create(tmp_path, "CartPole-v1", "reinforce", 3, {"lr": 0.01})
    assert re.fullmatch(r"CartPole-v1__reinforce__3__\d{10,}", run.path.name)
    assert run.read_config() == {"env": "CartPole-v1", "algo": "reinforce", "seed": 3, "lr": 0.01}


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path):
    paths = {RunFolder.create(tmp_path, "E", "a", 0).path for _ in range(4)}
    assert len(paths) == 4


def test_slash_in_env_stays_one_folder(tmp_path: Path):
    run = RunFolder.create(tmp_path, "ALE/Pong-v5", "../ppo", 0)
    assert run.path.parent == tmp_path
    assert run.path.name.startswith("ALE-Pong-v5__ppo__0__")


def test_rows_come_back(tmp_path: Path):
    with RunFolder.create(tmp_path, "E", "a", 0) as run:
        run.log(0, **{"charts/episodic_return": 9.5, "charts/SPS": np.int64(12)})
        run.log(64, **{"losses/loss": np.float32("nan"), "losses/kl": -math.inf})
        first, second = run.rows()
    assert (first["step"], first["charts/episodic_return"], first["charts/SPS"]) == (0, 9.5, 12)
    assert first["time"] > 1e9
    assert math.isnan(second["losses/loss"])
    assert second["losses/kl"] == -math.inf
    for line in run.metrics.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize("value", [np.zeros(2), "3", None, 1j, [1.0]])
def test_only_scalars(tmp_path: Path, value: object):
    run = RunFolder.create(tmp_path, "E", "a", 0)
    with pytest.raises(RecurraError, match="x is not a scalar"):
        run.log(0, x=value)


@pytest.mark.parametrize("cut", [1, 2, 9, 20])
def test_torn_last_line(tmp_path: Path, cut: int):
    with RunFolder.create(tmp_path, "E", "a", 0) as run:
        for step in range(3):
            run.log(step, x=step)
    os.truncate(run.metrics, run.metrics.stat().st_size - cut)
    kept = [0, 1, 2] if cut == 1 else [0, 1]  # cut == 1 takes the newline only
    assert [r["step"] for r in read_metrics(run.metrics)] == kept
    with RunFolder(run.path) as again:
        again.log(7, x=7)
    assert [r["step"] for r in read_metrics(run.metrics)] == [*kept, 7]


def test_broken_middle_line_is_told(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(RecurraError, match=r"metrics.jsonl:2 is not a metrics row"):
        read_metrics(path)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('{"step": "one"}', "its step is 'one'"),
        ('{"step": null, "x": 1}', "its step is None"),
        ('{"resume": 1.5}', "its resume is 1.5"),
        (f'{{"step": 1, "x": {10**400}}}', "its x is larger than any number"),
        ("[1]", "it has no step"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_rows_that_nobody_logs_are_told(tmp_path: Path, row: str, why: str):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 0}}\n{row}\n{{"step": 2}}\n')
    with pytest.raises(RecurraError, match=r"metrics.jsonl:2 is not a metrics row") as e:
        read_metrics(path)
    assert why in str(e.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"passes": 3}',
        '{"passes": [1]}',
        '{"other": []}',
        '{"stores": [{"bytes": "x"}]}',
        '{"stores": [{"bytes": Infinity}]}',
        "[1]",
        "[" * 100_000,
    ],
)
def test_a_damaged_account_of_the_program_leaves_the_metrics(tmp_path: Path, text: str):
    with RunFolder.create(tmp_path, "E", "a", 0) as run:
        run.log(1, loss=0.25)
    (run.path / "compiled.json").write_text(text)
    with pytest.raises(RecurraError, match=r"compiled.json (has what no program|is damaged)"):
        write_page(run)
    assert text.startswith("[") or "loss" in run.report.read_text()


def test_missing_file_has_no_rows(tmp_path: Path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_looking_at_a_run_writes_nothing(tmp_path: Path):
    run = RunFolder.create(tmp_path, "E", "a", 0)
    RunFolder(run.path).rows()
    assert sorted(p.name for p in run.path.iterdir()) == ["config.json"]
    with pytest.raises(RecurraError, match="there is no run"):
        RunFolder(tmp_path / "nothing")


def test_resume_supersedes_later_rows(tmp_path: Path):
    with RunFolder.create(tmp_path, "E", "a", 0) as run:
        for step in range(5):
            run.log(step, x=0)
    with RunFolder.resume(run.path, step=2) as again:
        again.log(3, x=1)
    assert [(r["step"], r["x"]) for r in again.rows()] == [(0, 0), (1, 0), (2, 0), (3, 1)]
    assert runs.curves(again.rows()) == {"x": [(0, 0.0), (1, 0.0), (2, 0.0), (3, 1.0)]}
    lines = run.metrics.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3]


def test_metrics_of_earlier_versions_are_read(tmp_path: Path):
    """There a line said that the run went back; what it went back behind is not read."""
    rows = [
        {"step": 0, "x": 0},
        {"step": 1, "x": 0},
        {"resume": 0, "time": 1.0},
        {"step": 1, "x": 2},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert read_metrics(path) == [rows[0], rows[3]]


LOGGER = """
import itertools, sys
from recurra.report.runs import RunFolder
run = RunFolder(sys.argv[1])
for step in itertools.count():
    run.log(step, **{"charts/x": step})
    print(step, flush=True)
"""


def test_killed_while_logging(tmp_path: Path):
    run = RunFolder.create(tmp_path, "E", "a", 0)
    child = subprocess.Popen(
        [sys.executable, "-c", LOGGER, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(200):
        last = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    last = max([last, *map(int, child.stdout.read().split("\n")[:-1])])
    child.stdout.close()
    child.wait()
    steps = [r["step"] for r in run.rows()]
    assert steps == list(range(len(steps)))
    assert steps[-1] >= last


FILLER = """
import resource, signal, sys
from recurra.errors import RecurraError
from recurra.report.runs import RunFolder, read_metrics
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
run = RunFolder(sys.argv[1])
done = 0
try:
    for done in range(100):
        run.log(done, x=1.0)
except RecurraError as error:
    assert "cannot be written" in str(error)
    assert error.exit_code == 1
    assert [r["step"] for r in read_metrics(run.metrics)] == list(range(done))
    sys.exit(7)
"""


def test_full_disk_while_logging(tmp_path: Path):
    run = RunFolder.create(tmp_path, "E", "a", 0)
    done = subprocess.run([sys.executable, "-c", FILLER, str(run.path)], check=False)
    assert done.returncode == 7
    assert run.metrics.read_text().endswith("}\n")


def test_config_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = RunFolder.create(tmp_path, "E", "a", 0)
    before = run.read_config()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as told:
        run.write_config({"lr": 1})
    assert told.value.filename == str(run.path / "config.json")
    assert run.read_config() == before
    assert [p.name for p in run.path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", ["step", "time"])
def test_a_metric_that_is_called_as_a_column_is_refused_before_the_run(tmp_path: Path, name: str):
    program = logging(name)
    with pytest.raises(RecurraError, match=f"may not be called '{name}'") as refused:
        program.run(folder=tmp_path / "run")
    assert refused.value.hint == f"write rc.log(my_{name}=..), or run it without folder="
    assert not (tmp_path / "run").exists()
    assert program.run()[name].tolist() == [0.0, 1.0, 2.0]


def test_what_cannot_be_the_folder_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written anywhere, above all not into the folder that one is in."""
    monkeypatch.chdir(tmp_path)
    program = logging("loss")
    with pytest.raises(RecurraError, match="the folder of a run has no name"):
        program.run(folder="")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("mine")
    for folder in ("file", "file/below"):
        with pytest.raises(RecurraError, match=f"{folder} cannot be the folder of a run"):
            program.run(folder=folder)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["self", "done", "scalars", "seed", "a b", "x/y", "<b>x", "é\n"])
def test_a_metric_has_any_other_name(tmp_path: Path, name: str):
    logging(name).run(folder=tmp_path / "run")
    assert [row[name] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2]
    assert "<b>x" not in (tmp_path / "run" / "report.html").read_text()


def logging(name: str) -> Any:
    ctx = rc.Context(dims="i")
    with ctx as (i, I):
        rc.log(**{name: rc.value(i) * 1.0})
    return ctx.compile({I: 3}, backend="numpy")
