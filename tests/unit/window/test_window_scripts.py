"""`recurra window run`: a script inside a window."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from documents import ROOT, env
from recurra.cli import main

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("pytorch_in_windows")]


def test_a_script_has_arguments_exit_codes_and_tracebacks_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "infer.py"
    path.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)")
    with pytest.raises(SystemExit) as left:
        main(["window", "run", str(path), "--threads", "1", "--", "--n", "3", "file"])
    assert left.value.code == 3
    assert capsys.readouterr().out == "['--n', '3', 'file']\n"
    path.write_text("import torch\ndef f(x):\n    return x @ torch.ones(5, 5)\nf(torch.ones(4, 4))")
    assert main(["window", "run", str(path)]) == 1
    told = capsys.readouterr().err
    assert "window/commands.py" not in told
    assert told.startswith(f'Traceback (most recent call last):\n  File "{path}", line 4, in <mod')
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in told
    path.write_text("x = (")
    assert main(["window", "run", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f'  File "{path}", line 1\n')


@pytest.mark.parametrize("words", [("window", "run"), ("run",)])
def test_a_script_finds_what_lies_beside_it_wherever_it_goes(
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its folder is told by no name that depends on where it was called."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("beside_infer.py").write_text("THERE = 'it is'")
    Path("infer.py").write_text(
        "import os\nos.chdir('/')\nimport beside_infer\n"
        "def f(x: int): ...\nprint(__file__, beside_infer.THERE, f.__annotations__)"
    )
    assert main([*words, "infer.py"]) == 0
    told = capsys.readouterr().out
    assert told == f"{tmp_path / 'infer.py'} it is {{'x': <class 'int'>}}\n"
    sys.modules.pop("beside_infer")


def test_a_script_that_exits_is_told_of_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    path, picture = tmp_path / "infer.py", tmp_path / "ran.html"
    path.write_text(
        "import sys, torch\nx = torch.ones(37, 37)\n"
        "for _ in range(9): y = x @ x\nsys.exit(int(sys.argv[1]))\n"
    )
    command = ["window", "run", str(path), "--explain", "--always", "--timeline", str(picture)]
    for code in (0, 7):
        with pytest.raises(SystemExit) as left:
            main([*command, "--", str(code)])
        assert left.value.code == code
        told = capsys.readouterr().err
        assert "deferred: 8" in told or "deferred: 9" in told
        assert "aten::mm" in told
        assert "aten::mm" in picture.read_text()
        picture.unlink()
    path.write_text("print('nothing')")
    assert main(command) == 0
    assert f"{picture} is not written: no operator was seen" in capsys.readouterr().err
    assert not picture.exists()
    assert main([*command[:-1], str(tmp_path / "ran.png")]) == 2
    assert "neither .html nor .json" in capsys.readouterr().err


def command(*words: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recurra.cli", "window", "run", *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=env() | variables,
        cwd=ROOT,
    )


@pytest.mark.slow
def test_without_a_compiler_no_script_has_run(tmp_path: Path) -> None:
    path = tmp_path / "infer.py"
    path.write_text("print('it ran')")
    nowhere = str(tmp_path / "nowhere")
    done = command(str(path), XDG_CACHE_HOME=nowhere, CXX="no-such-compiler")
    assert done.stdout == ""
    first, *others = done.stderr.splitlines()
    assert first == "there is no C++ compiler"
    assert [line[:2] for line in others] == ["  ", "  "]
    assert done.returncode == 1


@pytest.mark.slow
def test_a_script_that_is_typed_or_piped() -> None:
    done = command("/dev/stdin", given="print('it ran')\n")
    assert (done.returncode, done.stdout) == (0, "it ran\n"), done.stderr


def test_options_of_a_script_that_stand_before_the_dashes_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["window", "run", "infer.py", "--images", "3"])
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith("options come behind --, as in infer.py -- --n 3\n")


def test_scripts_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "nothing.py"):
        assert main(["window", "run", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"there is no file {path}\n  ")
