"""The public API has types: a user's program passes mypy, and a wrong option does not.

`make check` has pyright look at the same program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from typing import get_type_hints

import pytest

from documents import ROOT
from recurra.cost.tuning_knobs import Knobs, Tuning

PROGRAM = ROOT / "tests" / "typed" / "user.py"
OPTION = 'backend="numpy"'
CHECKER = ("mypy", "--strict", "--follow-imports=silent", "--no-error-summary")


WRONG = {  # what a checker says of it
    'bakend="numpy"': '"bakend"',
    "backend=3": '"backend"',
    'backend="numpy", workers="two"': '"workers"',
    'backend="numpy", batch_last=3': '"batch_last"',
}
# Types of these libraries take half the time, and the program has none of them.
SETTINGS = "[mypy]\n[mypy-jax.*,jaxlib.*,ml_dtypes.*,rich.*]\nfollow_imports = skip\n"


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy has against the program, user.py, and those with a wrong option, wrong0.py.."""
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "mypy.ini").write_text(SETTINGS)
    text = PROGRAM.read_text()
    assert OPTION in text
    texts = {f"wrong{k}.py": text.replace(OPTION, wrong) for k, wrong in enumerate(WRONG)}
    for name, x in {"user.py": text, **texts}.items():
        (folder / name).write_text(x)
    command = [sys.executable, "-m", *CHECKER, "--cache-dir", os.devnull, "user.py", *texts]
    env = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


@pytest.mark.slow
def test_a_users_program_has_types(errors: list[str]) -> None:
    assert [line for line in errors if line.startswith("user.py")] == []


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_option_is_an_error(wrong: str, errors: list[str]) -> None:
    name = f"wrong{list(WRONG).index(wrong)}.py"
    assert [line for line in errors if line.startswith(name) and WRONG[wrong] in line]


def test_keywords_are_the_knobs() -> None:
    assert get_type_hints(Knobs) == {f.name: get_type_hints(Tuning)[f.name] for f in fields(Tuning)}
