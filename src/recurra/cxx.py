"""C++ by the compiler of this machine.

Nothing that is built is needed: where there is no compiler, Python does the same, slowly.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from recurra.errors import RecurraError

COMPILERS = ("g++", "clang++", "c++")


class BuildError(RecurraError):
    """Something native cannot be built, or loaded, here."""

    exit_code = 1


def digest(parts: Iterable[str | bytes]) -> str:
    """A name for what the parts make: sixteen digits."""
    whole = b"\0".join(p.encode() if isinstance(p, str) else p for p in parts)
    return hashlib.sha256(whole).hexdigest()[:16]


def compiler() -> str:
    """$CXX, or the first of the usual names. Raises BuildError if there is none."""
    given = os.environ.get("CXX")
    found = given if given else next(filter(shutil.which, COMPILERS), None)
    if found is None or not shutil.which(found):
        raise BuildError(
            "there is no C++ compiler",
            facts=f"there is no {found or ', '.join(COMPILERS)} on the path"
            + (", which CXX names" if found else ""),
            hint="install one, or set CXX; without it Python does the same, slowly",
        )
    return found


def build(target: Path, arguments: Sequence[str]) -> Path:
    """Compiles to `target`, whoever else is building the same; `arguments` are but its name.

    Raises BuildError where there is no compiler, and with what the compiler says.
    """
    command = [compiler(), *arguments]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work) / target.name
        command += ["-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            first = [x for x in done.stderr.splitlines() if "error" in x][:3]
            raise BuildError(
                f"{command[0]} could not build {target.name}",
                facts="\n  ".join(first or done.stderr.splitlines()[-3:]),
                hint=f"the command was: {' '.join(command)}",
            )
        made.chmod(0o700)  # it is code: nobody else may write it
        made.replace(target)
    return target
