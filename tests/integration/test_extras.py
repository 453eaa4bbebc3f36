"""The wheel in empty environments: each extra's first command runs, or says what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

import installed
from documents import ROOT
from first_commands import FIRST, FirstCommand
from recurra.support.optional_packages import EXTRAS

pytestmark = pytest.mark.slow
WITHOUT_COMMAND = {"dev", "rllib", "cluster", "figures"}  # ours, of benchmarks, or of a cluster


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


@pytest.fixture(scope="module")
def bare(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment without extras."""
    return installed.environment(tmp_path_factory.mktemp("bare") / "env", unpacked)


@pytest.mark.parametrize("first", FIRST, ids=lambda x: f"{x.extra or 'none'}-{x.words[1]}")
def test_the_first_command_runs(
    first: FirstCommand, bare: Path, unpacked: Path, tmp_path: Path
) -> None:
    python = bare
    if first.extra:
        python = installed.environment(tmp_path / "env", unpacked, first.extra)
    done = installed.run(python, tmp_path, *first.words)
    assert done.returncode == 0, done.stderr
    assert first.prints in done.stdout


@pytest.mark.parametrize("first", [x for x in FIRST if x.extra], ids=lambda x: x.extra)
def test_without_its_extra_a_command_says_what_is_missing(
    first: FirstCommand, bare: Path, tmp_path: Path
) -> None:
    done = installed.run(bare, tmp_path, *first.words)
    assert done.returncode != 0
    assert first.package in done.stderr
    assert first.told in done.stderr
    is_command = "-m" in first.words
    assert ("Traceback" in done.stderr) is not is_command


def test_every_extra_has_a_first_command(unpacked: Path) -> None:
    (info,) = unpacked.glob("*.dist-info")
    names = set(Distribution.at(info).metadata.get_all("Provides-Extra") or [])
    assert names - WITHOUT_COMMAND == {x.extra for x in FIRST if x.extra}
    brought: dict[str, set[str]] = {}
    for text in Distribution.at(info).requires or []:
        if found := re.fullmatch(r"([\w-]+).*extra == ['\"]([\w-]+)['\"]", text):
            brought.setdefault(found[2], set()).add(found[1].lower())
    for package, extra in EXTRAS.items():
        assert package in brought[extra], f"recurra[{extra}] does not bring {package}"


def test_an_environment_holds_nothing_else(bare: Path, tmp_path: Path) -> None:
    assert installed.run(bare, tmp_path, "-c", "import recurra, jax").returncode == 0
    for package in ("torch", "gymnasium", "pytest", "documents"):
        done = installed.run(bare, tmp_path, "-c", f"import {package}")
        assert "ModuleNotFoundError" in done.stderr, package
