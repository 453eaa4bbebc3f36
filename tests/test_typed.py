"""The public API has types: a user's program passes pyright, and a wrong option does not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from documents import ROOT
from recurra.cost.tuning import Knobs, Tuning

PROGRAM = ROOT / "tests" / "typed" / "user.py"
OPTION = 'backend="numpy"'


def errors(file: Path) -> list[str]:
    """What pyright, as it is for strict users, has against a file."""
    settings = {"include": [str(file)], "extraPaths": [str(ROOT / "src")], "strict": [str(file)]}
    project = file.parent / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    return [x["message"] for x in found["generalDiagnostics"] if x["severity"] == "error"]


def test_a_users_program_has_types(tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text(PROGRAM.read_text())
    assert errors(file) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('bakend="numpy"', 'No parameter named "bakend"'),
        ("backend=3", '"backend"'),
        ('backend="numpy", workers="two"', '"workers"'),
        ('backend="numpy", last=3', '"last"'),
    ],
)
def test_a_wrong_option_is_an_error(wrong: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    text = PROGRAM.read_text()
    assert OPTION in text
    file.write_text(text.replace(OPTION, wrong))
    assert [message for message in errors(file) if told in message]


def test_keywords_are_the_knobs() -> None:
    assert get_type_hints(Knobs) == {f.name: get_type_hints(Tuning)[f.name] for f in fields(Tuning)}
