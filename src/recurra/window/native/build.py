"""C++ sources → extension modules in a cache folder, by `recurra window build`.

The folder is named after all that the result depends on: sources, Python, PyTorch if it is linked,
and the processor, whose widest instructions are used. What is not built is not missed, but for
PyTorch without annotations: the window in Python does the same.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from recurra import cxx, processor
from recurra.cxx import BuildError
from recurra.support.notices import tell_once
from recurra.support.private_files import (
    NotPrivateError,
    expect_private,
    make_folder,
    user_cache_folder,
)

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-O3", "-march=native", "-DNDEBUG")


@dataclass(frozen=True)
class Extension:
    """A module, its source and the headers beside it, and the package that it is linked with."""

    module: str
    sources: tuple[str, ...]
    package: str = ""


WINDOW = Extension(
    "_recurra_window",
    ("module.cpp", "clock.hpp", "from_python.hpp", "rows.hpp", "trial.hpp", "window.hpp"),
)
STREAMS = Extension(
    "_recurra_streams",
    (
        "streams_module.cpp",
        "cuda_driver.hpp",
        "driver.hpp",
        "from_python.hpp",
        "graphs.hpp",
        "issuer.hpp",
        "issuing_thread.hpp",
        "rows.hpp",
        "segment.hpp",
        "stub_driver.hpp",
        "window.hpp",
        "workspaces.hpp",
    ),
)
TORCH = Extension(
    "_recurra_torch",
    (
        "torch_module.cpp",
        "block.hpp",
        "call.hpp",
        "engine.hpp",
        "learned.hpp",
        "operators.hpp",
        "places.hpp",
        "prediction.hpp",
        "rows.hpp",
        "rule.hpp",
        "stretches.hpp",
        "touched.hpp",
        "trial.hpp",
        "window.hpp",
    ),
    "torch",
)


def cache_folder() -> Path:
    """Where builds are kept: recurra/window in the user's cache."""
    return user_cache_folder() / "recurra" / "window"


def built(folder: Path | None = None, extension: Extension = WINDOW) -> Path | None:
    """The module that fits this Python, processor and source, if it is there.

    One that other users can write is passed over, and told of.
    """
    path = _target(folder or cache_folder(), extension)
    try:
        expect_private(path, folder or user_cache_folder())
    except NotPrivateError as error:
        tell_once(f"{error.what}: {error.facts}; it is not loaded")
        return None
    except OSError:
        return None
    return path


def build(folder: Path | None = None, extension: Extension = WINDOW) -> Path:
    """Compiles, unless it is there; where it is.

    Raises BuildError without a compiler, nanobind or the package, and with what the compiler says.
    """
    if (there := built(folder, extension)) is not None:
        return there
    target = _target(folder or cache_folder(), extension)
    cxx.compiler()  # that there is none is said first
    make_folder(target.parent, folder or user_cache_folder())
    nanobind = _root("nanobind")
    include = [nanobind / "include", nanobind / "ext" / "robin_map" / "include"]
    arguments = [*FLAGS, "-fPIC", "-shared", "-fvisibility=hidden"]
    arguments += ["-fno-strict-aliasing", *_undefined()]
    arguments += [f"-I{p}" for p in (*include, sysconfig.get_paths()["include"])]
    arguments += [str(HERE / extension.sources[0]), str(nanobind / "src" / "nb_combined.cpp")]
    return cxx.build(target, [*arguments, *_linked(extension)])


def _linked(extension: Extension) -> list[str]:
    """What PyTorch's headers and libraries ask for."""
    if extension.package != "torch":
        return []
    root = _root("torch")
    include = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include"]
    words = [word for path in include for word in ("-isystem", str(path))]
    return [
        *words,
        f"-L{root / 'lib'}",
        "-ltorch_python",
        "-ltorch_cpu",
        "-lc10",
        f"-Wl,-rpath,{root / 'lib'}",
    ]


def build_stress(folder: Path, sanitizer: str, program: str = "stress") -> Path:
    """Compiles stress.cpp, or stress_streams.cpp, with a sanitizer, such as thread or address."""
    arguments = ["-std=c++20", "-O1", "-g", f"-fsanitize={sanitizer}", "-pthread"]
    return cxx.build(folder / f"{program}-{sanitizer}", [*arguments, str(HERE / f"{program}.cpp")])


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


def _undefined() -> list[str]:
    """Python's own symbols are found when the module is loaded."""
    return ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []


def _target(folder: Path, extension: Extension) -> Path:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    sources = [(HERE / name).read_text() for name in extension.sources]
    parts = [suffix, *FLAGS, processor.described(), *sources]
    if extension.package and util.find_spec(extension.package) is not None:
        parts.append(metadata.version(extension.package))
    return folder / cxx.digest(parts) / f"{extension.module}{suffix}"
