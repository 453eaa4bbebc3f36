"""C++ sources → an extension module in a cache folder, by `recurra window build`.

The folder is named after all that the result depends on: sources, Python, and the processor, whose
widest instructions are used. What is not built is not missed: the window in Python does the same.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from recurra.window.task import WindowError

HERE = Path(__file__).parent
MODULE = "_recurra_window"
SOURCES = ("module.cpp", "clock.hpp", "window.hpp")
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++20", "-O3", "-march=native", "-DNDEBUG")


class BuildError(WindowError):
    """The native window cannot be built here."""

    exit_code = 1


def cache_folder() -> Path:
    """Where builds are kept: recurra/window in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "recurra" / "window"


def built(folder: Path | None = None) -> Path | None:
    """The module that fits this Python, processor and source, if it is there."""
    path = _target(folder or cache_folder())
    return path if path.exists() else None


def build(folder: Path | None = None) -> Path:
    """Compiles, unless it is there; where it is.

    Raises BuildError without a compiler, without nanobind, and with what the compiler says.
    """
    target = _target(folder or cache_folder())
    if target.exists():
        return target
    compiler, nanobind = compiler_of(), _nanobind()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work) / target.name
        include = [nanobind / "include", nanobind / "ext" / "robin_map" / "include"]
        command = [compiler, *FLAGS, "-fPIC", "-shared", "-fvisibility=hidden"]
        command += ["-fno-strict-aliasing", *_undefined()]
        command += [f"-I{p}" for p in (*include, sysconfig.get_paths()["include"])]
        command += [str(HERE / "module.cpp"), str(nanobind / "src" / "nb_combined.cpp")]
        _compile([*command, "-o", str(made)])
        os.replace(made, target)  # at once: others may be building the same
    return target


def build_stress(folder: Path, sanitizer: str) -> Path:
    """Compiles stress.cpp with a sanitizer, such as thread or address."""
    target = folder / f"stress-{sanitizer}"
    command = [compiler_of(), "-std=c++20", "-O1", "-g", f"-fsanitize={sanitizer}", "-pthread"]
    _compile([*command, str(HERE / "stress.cpp"), "-o", str(target)])
    return target


def compiler_of() -> str:
    """$CXX, or the first of the usual names. Raises BuildError if there is none."""
    for name in (os.environ.get("CXX"), *COMPILERS):
        if name and shutil.which(name):
            return name
    raise BuildError(
        "there is no C++ compiler",
        facts=f"none of {', '.join(COMPILERS)} is on the path, and CXX names none",
        hint="install one, or go on with the window in Python, which does the same",
    )


def _nanobind() -> Path:
    try:
        import nanobind
    except ModuleNotFoundError:
        raise BuildError(
            "nanobind is missing", hint="pip install recurra[window], then recurra window build"
        ) from None
    return Path(nanobind.include_dir()).parent


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = [x for x in done.stderr.splitlines() if "error" in x][:3]
        raise BuildError(
            f"{command[0]} failed",
            facts="\n  ".join(first or done.stderr.splitlines()[-3:]),
            hint=f"the command was: {' '.join(command)}",
        )


def _undefined() -> list[str]:
    """Python's own symbols are found when the module is loaded."""
    return ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []


def _target(folder: Path) -> Path:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    parts = [suffix, *FLAGS, _processor(), *((HERE / name).read_text() for name in SOURCES)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return folder / key / f"{MODULE}{suffix}"


def _processor() -> str:
    """What -march=native depends on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"
