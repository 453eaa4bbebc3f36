"""Native extensions: C++ sources, built at their first use and kept in the user's cache.

    <cache>/recurra/native/<sources, flags, Python, PyTorch, processor>/<compiler>/<name>.so
                                                                        ..        /<name>.so.sha256

Builders take turns, write beside the place and then move there, so that readers see a whole build
or none, whoever is killed. What is read lies in folders that only this user may write, as all code
of the compilation cache, and is as it was written; anything else is passed over, and told of.
Where there is no compiler, as in an image, any compiler's build will do.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, util
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from recurra.support import cpu, cxx_toolchain, private_files
from recurra.support.cxx_toolchain import BuildError
from recurra.support.notices import tell, tell_once
from recurra.support.optional_packages import missing_package
from recurra.support.private_files import NotPrivateError, cache_folder, make_folder

WORK = ".build-"


@dataclass(frozen=True)
class Extension:
    """A library, or a module of Python that nanobind makes."""

    name: str
    what: str
    """In messages: `the native window`"""
    source: Path
    """What is compiled; it includes the others."""
    flags: tuple[str, ...]
    is_module: bool = True
    package: str = ""
    """What it is linked with: `torch`, or nothing"""

    @property
    def file(self) -> str:
        """The name of the build's file."""
        suffix = EXTENSION_SUFFIXES[0] if self.is_module else ".so"
        return f"{self.name}{suffix}"


def find(extension: Extension, folder: Path | None = None) -> Path | None:
    """Return the build for these sources, this Python and this compiler, if it is there.

    It lies in the user's cache, or in `folder`. What others can write and what is damaged is
    passed over, and told of.
    """
    given, root = _places(folder)
    place = root / _key(extension)
    compiler = _compiler(extension)
    if compiler is not None:
        builds = [place / compiler]
    else:
        builds = sorted(place.iterdir()) if place.is_dir() else []
    found = (_checked(build / extension.file, given) for build in builds)
    return next((path for path in found if path is not None), None)


def build(extension: Extension, folder: Path | None = None) -> Path:
    """Return the build of an extension; make it, with a line on standard error, if there is none.

    Raises BuildError if there is no compiler or package, if the compiler fails or hangs, and if
    nothing can be kept; NotPrivateError if others can write to the cache.
    """
    if (there := find(extension, folder)) is not None:
        return there
    cxx_toolchain.compiler()  # that there is none is said first
    arguments = _arguments(extension)
    given, root = _places(folder)
    target = root / _key(extension) / (_compiler(extension) or "") / extension.file
    try:
        make_folder(target.parent, given)
        waiting = f"waiting for another process that builds {extension.what}"
        with _locked(target.parent, waiting) as alone:
            if (there := find(extension, folder)) is not None:
                return there
            for left in target.parent.glob(f"{WORK}*") if alone else ():  # by who was killed
                shutil.rmtree(left, ignore_errors=True)
            tell(f"building {extension.what}, once")
            with tempfile.TemporaryDirectory(prefix=WORK, dir=target.parent) as work:
                made = cxx_toolchain.build(Path(work) / target.name, arguments)
                _keep(made, target)
    except OSError as error:
        raise BuildError(
            f"{extension.what} cannot be kept",
            facts=f"{target.parent}: {error.strerror or error}",
            hint="make room, or name another folder: RECURRA_CACHE=/folder",
        ) from None
    return target


def digest(parts: Iterable[str | bytes]) -> str:
    """Return a name for what the parts make: sixteen digits."""
    whole = b"\0".join(p.encode() if isinstance(p, str) else p for p in parts)
    return hashlib.sha256(whole).hexdigest()[:16]


def _places(folder: Path | None) -> tuple[Path, Path]:
    """Return a folder that is given, in whatever state, and the one in it that builds lie in."""
    given = folder or cache_folder()
    return given, folder or given / "recurra" / "native"


def _key(extension: Extension) -> str:
    """Return a name for all that a build depends on, but for who makes it."""
    parts = [extension.file, *extension.flags, *cxx_toolchain.flags()]
    parts += [sys.version, platform.system(), cpu.described(), _version(extension.package)]
    return digest([*parts, *(path.read_bytes() for path in _sources(extension.source))])


def _sources(first: Path) -> list[Path]:
    """Return a source and all that it includes from folders of ours."""
    found = [first]
    for path in found:
        names = re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)
        paths = [path.parent / name for name in names]
        found += [x for x in dict.fromkeys(paths) if x not in found and x.exists()]
    return found


def _compiler(extension: Extension) -> str | None:
    """Return a name for what makes a build; None if it is not all here."""
    compiler = cxx_toolchain.identity()
    nanobind = _version("nanobind") if extension.is_module else "none"
    return digest([compiler, nanobind]) if compiler and nanobind else None


def _version(package: str) -> str:
    try:
        return metadata.version(package) if package else ""
    except metadata.PackageNotFoundError:
        return ""


def _checked(path: Path, given: Path) -> Path | None:
    """Return the path if the file there is private, and as it was written."""
    try:
        data = private_files.read(path, given)
        told = private_files.read(_seal(path), given)
    except NotPrivateError as error:
        tell_once(f"{error.what}: {error.facts}; it is not loaded")
        return None
    except OSError:
        return None
    if hashlib.sha256(data).hexdigest().encode() == told:
        return path
    tell_once(f"{path} is damaged; it is built again")
    return None


def _seal(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _keep(made: Path, target: Path) -> None:
    """Move what is made to its place, on disk; raises OSError."""
    made.chmod(0o700)  # it is code: nobody else may write it
    seal = _seal(made)
    seal.write_text(hashlib.sha256(made.read_bytes()).hexdigest())
    seal.chmod(0o600)
    for path, place in ((seal, _seal(target)), (made, target)):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(place)


@contextmanager
def _locked(folder: Path, waiting: str) -> Generator[bool]:
    """Hold the lock of a folder, which ends with the process; tell of a wait.

    Yield whether it is held: where there are no locks, who moves its build last has it.
    """
    try:
        import fcntl
    except ImportError:
        yield False
        return
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(waiting)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(handle)


def _arguments(extension: Extension) -> list[str]:
    """Return what the compiler is told; raises BuildError if a package is missing."""
    words = [*extension.flags, "-fPIC", "-shared"]
    if not extension.is_module:
        return [*words, str(extension.source)]
    nanobind = _root("nanobind", extension.what)
    include = [nanobind / "include", nanobind / "ext" / "robin_map" / "include"]
    words += ["-fvisibility=hidden", "-fno-strict-aliasing"]
    if sys.platform == "darwin":  # Python's own symbols are found when the module is loaded
        words += ["-undefined", "dynamic_lookup"]
    words += [f"-I{p}" for p in (*include, sysconfig.get_paths()["include"])]
    words += [str(extension.source), str(nanobind / "src" / "nb_combined.cpp")]
    return [*words, *_linked(extension)]


def _linked(extension: Extension) -> list[str]:
    """Return what PyTorch's headers and libraries ask for."""
    if extension.package != "torch":
        return []
    root = _root("torch", extension.what)
    include = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include"]
    library = root / "lib"
    words = [word for path in include for word in ("-isystem", str(path))]
    words += [f"-L{library}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    return [*words, f"-Wl,-rpath,{library}"]


def _root(package: str, what: str) -> Path:
    """Return the folder of a package, which is not imported."""
    spec = util.find_spec(package)
    if spec is None or spec.origin is None:
        raise missing_package(ModuleNotFoundError(name=package), what, BuildError)
    return Path(spec.origin).parent
