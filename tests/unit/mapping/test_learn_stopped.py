"""`recurra map train` that is stopped by Ctrl-C keeps what it has, and goes on from there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from documents import env
from recurra.cli import main
from recurra.mapping.commands import problem_of
from recurra.mapping.learn.command import MapTrainCommand
from recurra.nest.agents.learning import checkpoint_rounds
from recurra.storage.mapping_problem_text import solution_from_json

# As from a terminal, also where who started us ignores Ctrl-C.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from recurra.cli import main
sys.exit(main())
"""


def trained(folder: Path, *more: str) -> tuple[int, str]:
    """Exit code and errors of a run that is interrupted when it has learned.

    Its first answer moves nothing, and its second is of a round: it comes after a few seconds, or
    12 are enough for a round that does not find a better one.
    """
    command = [sys.executable, "-c", INTERRUPTIBLE, "map", "train", "ppo_step"]
    options = ["--agent", "policy", "--demonstrate", "0", "--seconds", "600", "--folder"]
    process = subprocess.Popen(
        [*command, *options, str(folder), *more], stderr=subprocess.PIPE, text=True, env=env()
    )
    curve = folder / "curve.jsonl"
    before = curve.read_text().count("\n") if "--resume" in more else 0
    for answers, seconds in ((1, 120), (2, 12)):
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end:
            if curve.exists() and curve.read_text().count("\n") >= before + answers:
                break
            time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    return process.returncode, said


@pytest.mark.slow
def test_an_interrupt_saves_every_round(tmp_path: Path) -> None:
    code, said = trained(tmp_path)
    assert code == 130, said
    assert "Traceback" not in said
    options = f"--agent policy --seconds 600.0 --demonstrate 0.0 --folder {tmp_path} --resume"
    assert f"go on with: recurra map train ppo_step {options}" in said
    first = checkpoint_rounds(tmp_path / "checkpoint.npz")
    assert first > 0
    best = answer(tmp_path)
    assert best == max(shares(tmp_path)) > 0
    code, said = trained(tmp_path, "--resume")
    assert code == 130, said
    assert checkpoint_rounds(tmp_path / "checkpoint.npz") > first
    assert answer(tmp_path) == max(shares(tmp_path)) >= best


def shares(folder: Path) -> list[float]:
    return [json.loads(x)["share"] for x in (folder / "curve.jsonl").read_text().splitlines()]


def answer(folder: Path) -> float:
    problem = problem_of("ppo_step", None)
    solution = solution_from_json(problem, (folder / "answer.json").read_text())
    return solution.reward(problem) / problem.total


@pytest.mark.slow
def test_a_better_answer_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of a second cannot learn, and answers with the game that moves nothing."""
    begin = MapTrainCommand("ppo_step", agent="policy", seconds=1, folder=tmp_path)
    assert begin() == 0
    reference = answer(tmp_path)
    assert main(["map", "solve", "ppo_step", "--seconds", "2", "--out", str(tmp_path / "a")]) == 0
    better = (tmp_path / "a").read_text()
    (tmp_path / "answer.json").write_text(better)
    (tmp_path / "checkpoint.npz").touch()  # such a run does not read it
    assert replace(begin, resume=True)() == 0
    assert answer(tmp_path) > reference
    (tmp_path / "answer.json").write_text(better[:-20])
    capsys.readouterr()
    assert replace(begin, resume=True)() == 0
    assert answer(tmp_path) == reference
    assert "is passed over" in capsys.readouterr().err
