"""The public API has types: a user's program passes mypy, and a wrong option does not.

`make check` has pyright look at the same program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from documents import ROOT
from recurra.cost.tuning_knobs import Knobs, Tuning

PROGRAM = ROOT / "tests" / "typed" / "user.py"
OPTION = 'backend="numpy"'
CHECKER = ("mypy", "--strict", "--follow-imports=silent", "--no-error-summary")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def errors(file: Path, cache: Path) -> list[str]:
    """What mypy has against a file."""
    command = [sys.executable, "-m", *CHECKER, "--cache-dir", str(cache), file.name]
    env = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, cwd=file.parent, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


@pytest.mark.slow
def test_a_users_program_has_types(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text(PROGRAM.read_text())
    assert errors(file, cache) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('bakend="numpy"', '"bakend"'),
        ("backend=3", '"backend"'),
        ('backend="numpy", workers="two"', '"workers"'),
        ('backend="numpy", batch_last=3', '"batch_last"'),
    ],
)
def test_a_wrong_option_is_an_error(wrong: str, told: str, tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "user.py"
    text = PROGRAM.read_text()
    assert OPTION in text
    file.write_text(text.replace(OPTION, wrong))
    assert [line for line in errors(file, cache) if told in line]


def test_keywords_are_the_knobs() -> None:
    assert get_type_hints(Knobs) == {f.name: get_type_hints(Tuning)[f.name] for f in fields(Tuning)}
