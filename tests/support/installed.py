"""Environments that hold a wheel and what it says it needs, of what is installed here: no index."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


def needed(requirements: list[str], extras: frozenset[str], seen: set[str]) -> Iterator[str]:
    """The distributions that requirements lead to, by name, each once.

    Raises PackageNotFoundError if one of them is not installed.
    """
    for text in requirements:
        asked = Requirement(text)
        if asked.marker and not any(asked.marker.evaluate({"extra": x}) for x in ("", *extras)):
            continue
        key = f"{asked.name}[{','.join(sorted(asked.extras))}]"
        if key in seen:
            continue
        seen.add(key)
        yield asked.name
        found = distribution(asked.name)
        yield from needed(found.requires or [], frozenset(asked.extras), seen)


def _tops(found: Distribution) -> set[str]:
    """The folders and modules of a distribution, beside those of others."""
    paths = (path.parts[0] for path in found.files or ())
    return {top for top in paths if top not in ("..", "__pycache__")}


def environment(folder: Path, unpacked: Path, *extras: str) -> Path:
    """The Python of a new environment that holds an unpacked wheel and what extras of it need.

    Packages are linked to, not copied: nothing but what the wheel names can be imported. A file
    of Python's own start-up is linked only with the package that it belongs to.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    for path in unpacked.iterdir():
        (site / path.name).symlink_to(path)
    (info,) = unpacked.glob("*.dist-info")
    requires = list(Distribution.at(info).requires or [])
    for name in needed(requires, frozenset(extras), set()):
        found = distribution(name)
        for top in _tops(found):
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return folder / "bin" / "python"


def run(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`python words..` in a folder; the package of this checkout is not on its path.

    C++ is compiled without optimizations, which takes half the time.
    """
    path = os.pathsep.join((str(python.parent), os.environ["PATH"]))
    kept = {"PATH": path, "HOME": str(folder), "JAX_PLATFORMS": "cpu", "CXXFLAGS": "-O0"}
    command = [str(python), "-I", *words]
    return subprocess.run(
        command, cwd=folder, env=kept, capture_output=True, text=True, check=False
    )
