"""Mistakes in the settings of `recurra train` are told by the flag that was given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recurra.cli import main

TINY = ["--rows", "2", "--steps", "4", "--iterations", "2", "--hidden", "4", "--backend", "numpy"]


def told(capsys: pytest.CaptureFixture[str], out: Path, *options: str) -> str:
    """What is said of options, which make no folder."""
    assert main(["train", options[0], *TINY, "--out", str(out), *options[1:]]) == 2
    assert not out.exists()
    said = capsys.readouterr().err
    assert "-->" not in said
    assert "bound" not in said
    return said


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ("ppo --rows 0", "--rows cannot be 0"),
        ("reinforce --steps -2", "--steps cannot be -2"),
        ("reinforce --iterations 0", "--iterations cannot be 0"),
        ("ppo --epochs 0", "--epochs cannot be 0"),
        ("ppo --minibatches 0", "--minibatches cannot be 0"),
        ("ppo --minibatches 3", "--minibatches 3 does not divide 8 samples"),
        ("ppo --hidden 4 0", "--hidden cannot be 0"),
        (f"reinforce --hidden {10**20}", f"--hidden cannot be {10**20}"),
        (f"ppo --rows {10**400}", f"--rows cannot be {10**400}"),
        ("ppo --checkpoint-every 0", "--checkpoint-every cannot be 0"),
        ("reinforce --workers 0", "--workers cannot be 0"),
        ("reinforce --seed -1", "--seed cannot be -1"),
        ("reinforce --gamma 1.5", "--gamma cannot be 1.5"),
        ("reinforce --lr nan", "--lr cannot be nan"),
        ("reinforce --lr -1", "--lr cannot be -1.0"),
    ],
)
def test_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, first: str):
    said = told(capsys, tmp_path / "runs", *options.split())
    assert said.splitlines()[0] == first
    assert "hint: " in said
    assert options.split()[1] in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ("reinforce --memory 3x", "--memory 3x"),
        ("reinforce --backend abacus", "--backend abacus"),
        ("reinforce --placement nowhere", "--placement nowhere"),
        ("reinforce --env Nope-v0", "--env Nope-v0"),
        ("ppo --workers 3", "B is --rows; "),
        ("ppo --workers 3", "cannot be split over --workers 3"),
        ("reinforce --hidden 2000000000 2000000000", "given as --hidden 2000000000 2000000000"),
        ("ppo --hidden 2000000000 2000000000 --backend torch", "given as --hidden 2000000000"),
        ("reinforce --hidden 2000000000 --memory 1GiB", "hint: --memory "),
    ],
)
def test_what_the_compiler_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, given: str
):
    said = told(capsys, tmp_path / "runs", *options.split())
    assert given in said
    assert "='" not in said  # as Python spells it


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ("ppo --workers 3 --rows 4", "--workers 2"),  # of the samples, 16, for which is no flag
        ("reinforce --workers 3 --rows 7", "--rows 9"),
        ("reinforce --workers 3 --rows 8", "--workers 2, or --rows 9"),
        ("ppo --placement greedy --backend jax", "leave --placement out, or --backend numpy"),
    ],
)
def test_a_way_out_is_told_in_flags_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, hint: str
):
    """It was: compile with {N: 129}, which no flag sets."""
    last = told(capsys, tmp_path / "runs", *options.split()).splitlines()[-1]
    assert last.startswith(f"  hint: {hint}")
    assert "{" not in last
    assert "=" not in last


def never(*_: object) -> None:
    raise AssertionError("it is too late to be refused")


def test_more_workers_than_points_are_refused_before_there_are_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """JAX took minutes to make its devices."""
    monkeypatch.setattr("recurra.runtime.compilation.mesh_of", never)
    said = told(capsys, tmp_path / "runs", "ppo", "--workers", "99999")
    assert "cannot be split over --workers 99999" in said
    assert "hint: --workers " in said


@pytest.mark.slow
def test_too_little_memory_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Parameters alone take more: no other way to compile it is tried. It took two minutes."""
    monkeypatch.setattr("recurra.runtime.memory_budget.recompute_candidates", never)
    few = ["--epochs", "1", "--minibatches", "1"]
    said = told(capsys, tmp_path / "runs", "ppo", "--memory", "64", *few)
    assert "parameters, inputs and outputs alone take" in said
    assert "hint: --memory " in said


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "file"
    file.write_text("a file")
    assert main(["train", "reinforce", *TINY, "--out", str(file)]) == 2
    said = capsys.readouterr().err
    assert f"nothing can be saved in {file}" in said
    assert "--out" in said
    assert file.read_text() == "a file"


def test_a_folder_that_is_only_read_is_refused_before_anything_is_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "others"
    folder.mkdir()
    monkeypatch.setattr("recurra.rl.train._compile", never)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != folder)
    said = told(capsys, folder / "runs", "reinforce")
    assert f"{folder} may not be written to" in said
    assert "hint: name another: --out runs" in said


def test_a_file_where_checkpoints_go_is_told_when_a_run_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """It was told by the first save, after an hour of work."""
    assert main(["train", "reinforce", *TINY, "--out", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    for file in (run / "checkpoints").iterdir():
        file.unlink()
    (run / "checkpoints").rmdir()
    (run / "checkpoints").write_text("a file")
    rows = (run / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    assert main(["train", "reinforce", "--resume", str(run), "--iterations", "4"]) == 2
    assert f"{run / 'checkpoints'} is no folder" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == rows


@pytest.mark.parametrize("name", ["missing", "file", "folder"])
def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "folder").mkdir()
    assert main(["train", "ppo", "--resume", str(tmp_path / name)]) == 2
    assert f"given as --resume {tmp_path / name}" in capsys.readouterr().err


def test_no_line_of_the_console_script_is_shown(tmp_path: Path):
    script = tmp_path / "recurra"
    script.write_text("import sys\nfrom recurra.cli import main\nsys.exit(main())\n")
    options = ["train", "reinforce", "--env", "Nope-v0", "--out", str(tmp_path / "runs")]
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Gymnasium cannot make Nope-v0" in done.stderr
    assert "sys.exit" not in done.stderr


@pytest.mark.slow
def test_an_environment_of_the_folder_where_the_command_is_given(tmp_path: Path):
    """The console script's own folder is where Python looks, not that of who calls it."""
    (tmp_path / "mymodule.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Corridor-v0', entry_point=CartPoleEnv)\n"
    )
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "recurra"
    script.write_text("import sys\nfrom recurra.cli import main\nsys.exit(main())\n")
    options = ["train", "reinforce", "--env", "mymodule:Corridor-v0", *TINY, "--json"]
    command = [sys.executable, str(script), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, len(list((tmp_path / "runs").iterdir()))) == (0, 1), done.stderr
