"""The wheel: the package, all of it, and nothing of benchmarks or tests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import pytest

import recurra
from documents import ROOT

SOURCE = ROOT / "src"
INFO = f"recurra-{recurra.__version__}.dist-info"
STRAY = re.compile(r"(^|/)(bench|benchmarks|tests?|conftest\.py|test_\w+|stress\w*\.cpp)(/|\.py|$)")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of this checkout, and unpacked in the folder `unpacked` beside it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    with ZipFile(made) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def files(folder: Path) -> set[str]:
    """All files in a folder but those that Python keeps there."""
    paths = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(folder).as_posix() for p in paths}


def strays(names: Iterable[str]) -> list[str]:
    """Those that belong to benchmarks or tests."""
    return [name for name in names if STRAY.search(name)]


def test_the_wheel_is_the_package(wheel: Path) -> None:
    inside = files(wheel)
    assert {name for name in inside if not name.startswith(f"{INFO}/")} == files(SOURCE)
    assert "recurra/py.typed" in inside
    assert not strays(inside)


@pytest.mark.parametrize(
    "name",
    [
        "benchmarks/harness.py",
        "recurra/bench/core.py",
        "recurra/window/native/stress_streams.cpp",
        "tests/conftest.py",
        "recurra/window/test_window.py",
    ],
)
def test_a_stray_file_is_seen(name: str) -> None:
    assert strays([name, "recurra/nest/tests_of_nothing.txt"]) == [name]


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    about = message_from_string((wheel / INFO / "METADATA").read_text())
    assert about["Version"] == recurra.__version__
    assert about["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in (about.get_all("Classifier") or [])
    assert "recurra = recurra.cli:main" in (wheel / INFO / "entry_points.txt").read_text()


def test_the_wheel_runs(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands are found; the benchmarks are said to be elsewhere."""
    monkeypatch.setenv("PYTHONPATH", str(wheel))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "recurra.cli", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run("--version").stdout == f"recurra {recurra.__version__}\n"
    bench = run("bench", "core", "--quick")
    assert bench.returncode == 2
    assert bench.stderr.startswith("the benchmarks are not here: ")
    assert str(wheel.parent) in bench.stderr
