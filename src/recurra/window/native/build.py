"""C++ sources → extension modules in a cache folder, by `recurra window build`.

The folder is named after all that the result depends on: sources, Python, PyTorch if it is linked,
and the processor, whose widest instructions are used. What is not built is not missed, but for
PyTorch without annotations: the window in Python does the same.
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
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from recurra.window.task import WindowError

HERE = Path(__file__).parent
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++20", "-O3", "-march=native", "-DNDEBUG")


@dataclass(frozen=True)
class Extension:
    """A module, its source and the headers beside it, and the package that it is linked with."""

    module: str
    sources: tuple[str, ...]
    package: str = ""


WINDOW = Extension("_recurra_window", ("module.cpp", "clock.hpp", "window.hpp"))
TORCH = Extension(
    "_recurra_torch",
    ("torch_module.cpp", "engine.hpp", "operators.hpp", "prediction.hpp", "window.hpp"),
    "torch",
)


class BuildError(WindowError):
    """The native window cannot be built here."""

    exit_code = 1


def cache_folder() -> Path:
    """Where builds are kept: recurra/window in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "recurra" / "window"


def built(folder: Path | None = None, extension: Extension = WINDOW) -> Path | None:
    """The module that fits this Python, processor and source, if it is there."""
    path = _target(folder or cache_folder(), extension)
    return path if path.exists() else None


def build(folder: Path | None = None, extension: Extension = WINDOW) -> Path:
    """Compiles, unless it is there; where it is.

    Raises BuildError without a compiler, nanobind or the package, and with what the compiler says.
    """
    target = _target(folder or cache_folder(), extension)
    if target.exists():
        return target
    compiler, nanobind = compiler_of(), _root("nanobind")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work) / target.name
        include = [nanobind / "include", nanobind / "ext" / "robin_map" / "include"]
        command = [compiler, *FLAGS, "-fPIC", "-shared", "-fvisibility=hidden"]
        command += ["-fno-strict-aliasing", *_undefined()]
        command += [f"-I{p}" for p in (*include, sysconfig.get_paths()["include"])]
        command += [str(HERE / extension.sources[0]), str(nanobind / "src" / "nb_combined.cpp")]
        _compile([*command, *_linked(extension), "-o", str(made)])
        os.replace(made, target)  # at once: others may be building the same
    return target


def _linked(extension: Extension) -> list[str]:
    """What PyTorch's headers and libraries ask for."""
    if extension.package != "torch":
        return []
    root = _root("torch")
    include = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include"]
    words = [word for path in include for word in ("-isystem", str(path))]
    return [*words, f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]


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


def _root(package: str) -> Path:
    """Where a package is, which is not imported."""
    spec = util.find_spec(package)
    if spec is None or spec.origin is None:
        extra = "torch" if package == "torch" else "window"
        raise BuildError(
            f"{package} is missing",
            hint=f"pip install recurra[{extra}], then recurra window build",
        )
    return Path(spec.origin).parent


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


def _target(folder: Path, extension: Extension) -> Path:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    sources = [(HERE / name).read_text() for name in extension.sources]
    parts = [suffix, *FLAGS, _processor(), *sources]
    if extension.package and util.find_spec(extension.package) is not None:
        parts.append(metadata.version(extension.package))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return folder / key / f"{extension.module}{suffix}"


def _processor() -> str:
    """What -march=native depends on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"
