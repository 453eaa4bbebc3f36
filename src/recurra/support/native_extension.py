"""Native extensions: C++ sources, built at their first use and kept in the user's cache.

    <cache>/recurra/native/<sources, flags, Python, PyTorch, processor>/<compiler>/<name>.so
                                                                        ..        /<name>.so.sha256

Builders take turns, and move a finished build to its path, so that readers see a complete build or
none, also after a kill. A build is loaded only from folders that only this user can write, as for
the compilation cache, and only if its checksum is right; others are skipped with a notice. Without
a compiler, as in an image, the build of any compiler is used.
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
    """A library, or a Python module by nanobind."""

    name: str
    what: str
    """The name in messages, such as `the native window`"""
    source: Path
    """The compiled file, which includes the others"""
    flags: tuple[str, ...]
    is_module: bool = True
    package: str = ""
    """The package that it is linked with: `torch`, or none"""

    @property
    def file(self) -> str:
        """The name of the build's file."""
        suffix = EXTENSION_SUFFIXES[0] if self.is_module else ".so"
        return f"{self.name}{suffix}"


def find(extension: Extension, folder: Path | None = None) -> Path | None:
    """Return the build for these sources, this Python and this compiler, if it exists.

    It is in the user's cache, or in `folder`. A build that others can write, or that is damaged, is
    skipped with a notice.
    """
    base, root = _folders(folder)
    place = root / _key(extension)
    compiler = _compiler(extension)
    if compiler is not None:
        builds = [place / compiler]
    else:
        builds = sorted(place.iterdir()) if place.is_dir() else []
    valid = (build / extension.file for build in builds if _is_valid(build / extension.file, base))
    return next(valid, None)


def build(extension: Extension, folder: Path | None = None) -> Path:
    """Return the build of an extension; make it, with a notice, if there is none.

    Raises BuildError if there is no compiler or package, if the compiler fails or hangs, and if the
    build cannot be stored; NotPrivateError if others can write to the cache.
    """
    if (existing := find(extension, folder)) is not None:
        return existing
    cxx_toolchain.compiler()  # a missing compiler is the first error
    arguments = _arguments(extension)
    base, root = _folders(folder)
    target = root / _key(extension) / (_compiler(extension) or "") / extension.file
    try:
        make_folder(target.parent, base)
        waiting = f"waiting for another process that builds {extension.what}"
        with _locked(target.parent, waiting) as is_locked:
            if (existing := find(extension, folder)) is not None:
                return existing
            for leftover in target.parent.glob(f"{WORK}*") if is_locked else ():  # of a kill
                shutil.rmtree(leftover, ignore_errors=True)
            tell(f"building {extension.what}, once")
            with tempfile.TemporaryDirectory(prefix=WORK, dir=target.parent) as work:
                _store(cxx_toolchain.build(Path(work) / target.name, arguments), target)
    except OSError as error:
        raise BuildError(
            f"{extension.what} cannot be kept",
            facts=f"{target.parent}: {error.strerror or error}",
            hint="make room, or name another folder: RECURRA_CACHE=/folder",
        ) from None
    return target


def digest(parts: Iterable[str | bytes]) -> str:
    """Return a hash of the parts, of sixteen digits."""
    data = b"\0".join(p.encode() if isinstance(p, str) else p for p in parts)
    return hashlib.sha256(data).hexdigest()[:16]


def _folders(folder: Path | None) -> tuple[Path, Path]:
    """Return the existing base folder, which may be shared, and the folder of builds in it."""
    base = folder or cache_folder()
    return base, folder or base / "recurra" / "native"


def _key(extension: Extension) -> str:
    """Return a hash of everything that a build depends on, except the compiler."""
    parts = [extension.file, *extension.flags, *cxx_toolchain.cxx_flags()]
    parts += [sys.version, platform.system(), cpu.fingerprint(), _version(extension.package)]
    return digest([*parts, *(path.read_bytes() for path in _sources(extension.source))])


def _sources(first: Path) -> list[Path]:
    """Return a source and all local files that it includes."""
    sources = [first]
    for path in sources:
        names = re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)
        paths = [path.parent / name for name in names]
        sources += [x for x in dict.fromkeys(paths) if x not in sources and x.exists()]
    return sources


def _compiler(extension: Extension) -> str | None:
    """Return a hash of the compiler and nanobind; None if one of them is missing."""
    compiler = cxx_toolchain.identity()
    nanobind = _version("nanobind") if extension.is_module else "none"
    return digest([compiler, nanobind]) if compiler and nanobind else None


def _version(package: str) -> str:
    try:
        return metadata.version(package) if package else ""
    except metadata.PackageNotFoundError:
        return ""


def _is_valid(path: Path, base: Path) -> bool:
    """Return whether a file is private and has the right checksum; give notice otherwise."""
    try:
        data = private_files.read(path, base)
        checksum = private_files.read(_checksum_file(path), base)
    except NotPrivateError as error:
        tell_once(f"{error.what}: {error.facts}; it is not loaded")
        return False
    except OSError:
        return False
    if hashlib.sha256(data).hexdigest().encode() == checksum:
        return True
    tell_once(f"{path} is damaged; it is built again")
    return False


def _checksum_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _store(built: Path, target: Path) -> None:
    """Move a build and its checksum durably to the target; raises OSError."""
    built.chmod(0o700)  # it is code: only its owner may write it
    checksum = _checksum_file(built)
    checksum.write_text(hashlib.sha256(built.read_bytes()).hexdigest())
    checksum.chmod(0o600)
    for path, destination in ((checksum, _checksum_file(target)), (built, target)):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(destination)


@contextmanager
def _locked(folder: Path, waiting: str) -> Generator[bool]:
    """Hold the lock of a folder, which ends with the process, with a notice of a wait.

    Yields whether it is held: without locks, the last finished build replaces the others.
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
    """Return the compiler's arguments; raises BuildError if a package is missing."""
    words = [*extension.flags, "-fPIC", "-shared"]
    if not extension.is_module:
        return [*words, str(extension.source)]
    nanobind = _root("nanobind", extension.what)
    include = [nanobind / "include", nanobind / "ext" / "robin_map" / "include"]
    words += ["-fvisibility=hidden", "-fno-strict-aliasing"]
    if sys.platform == "darwin":  # Python's symbols are resolved when the module is loaded
        words += ["-undefined", "dynamic_lookup"]
    words += [f"-I{p}" for p in (*include, sysconfig.get_paths()["include"])]
    words += [str(extension.source), str(nanobind / "src" / "nb_combined.cpp")]
    return [*words, *_linked(extension)]


def _linked(extension: Extension) -> list[str]:
    """Return the arguments for PyTorch's headers and libraries, if the extension uses them."""
    if extension.package != "torch":
        return []
    root = _root("torch", extension.what)
    include = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include"]
    library = root / "lib"
    words = [word for path in include for word in ("-isystem", str(path))]
    words += [f"-L{library}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    return [*words, f"-Wl,-rpath,{library}"]


def _root(package: str, what: str) -> Path:
    """Return the folder of a package, without importing it."""
    spec = util.find_spec(package)
    if spec is None or spec.origin is None:
        raise missing_package(ModuleNotFoundError(name=package), what, BuildError)
    return Path(spec.origin).parent
