"""The compilation cache, in which the next start finds what this one has compiled.

    RECURRA_CACHE/recurra/programs/3f0c../program          passes, schedule, plan and host code
    RECURRA_CACHE/recurra/programs/3f0c../region_1_i-9b..  the name of a region's code
    RECURRA_CACHE/recurra/programs/52e1../code             a region as XLA made it for this machine

The name of an entry is a hash of all that decides what is made: of a program the equations, with
the arrays and functions that they name, bounds, options, this code, its libraries and the machine;
of a region its text for XLA, the libraries and the machine. A part is a digest and what it is of.
Entries are code: they are loaded only if nobody else can write them. To empty the cache, delete the
folder `programs`.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import IO, Any, TypeVar

from recurra import errors
from recurra.compiler.options import CompileOptions
from recurra.cost.target import Target
from recurra.errors import Loc
from recurra.ir.graph import Graph
from recurra.ir.resource import Resource, by_key
from recurra.ops.control import Foreign
from recurra.ops.source import Data
from recurra.support import atomic_write, cpu, private_files
from recurra.support.notices import notice_if_long
from recurra.support.private_files import NotPrivateError

LARGEST = 1 << 30  # bytes of a cache, about 300 programs of the size of a PPO: those used last stay
PRUNED_EVERY = LARGEST >> 5  # bytes that a process writes before it looks again whether it is room
LIBRARIES = ("jax", "jaxlib", "numpy")
OURS = Path("recurra", "programs")  # below the folder that is given: all that is ever removed
ENTRY = re.compile(r"[0-9a-f]{32}")
PART = re.compile(
    rf"({re.escape(atomic_write.TEMPORARY)}\d+-)?(program|code|memory-\d+|\w+-[0-9a-f]{{12}})"
)
DIGEST = hashlib.sha256().digest_size
T = TypeVar("T")


class Folder:
    """The folder that entries lie in, as this process uses it: many threads may, at once."""

    def __init__(self, given: Path):
        self.given, self.path = given, given / OURS
        self.lock = Lock()
        self.told: set[str] = set()
        self.unpruned = PRUNED_EVERY

    def __reduce__(self) -> tuple[object, ...]:
        return folder_at, (self.given,)

    def tell(self, line: str, kind: str = "") -> None:
        """Print a line on standard error, the first of its kind."""
        with self.lock:
            new = (kind or line) not in self.told
            self.told.add(kind or line)
        if new:
            print(f"recurra: {line}", file=sys.stderr)

    def read(self, path: Path) -> bytes | None:
        """Return a part that is there, and that nobody else can have written."""
        try:
            data = private_files.read(path, self.given)
        except NotPrivateError as error:
            self.tell(f"{error.what}: {error.facts}; it is compiled anew", "not private")
            return None
        except OSError:
            return None
        with suppress(OSError):  # a file system may be for reading only
            os.utime(path)
        if hashlib.sha256(data[DIGEST:]).digest() == data[:DIGEST]:
            return data[DIGEST:]
        self.tell(f"{path} is damaged; it is made again")
        return None

    def write(self, path: Path, data: bytes) -> None:
        """Write a part, all or nothing; what cannot be kept is told of, and so is what is full."""
        whole = hashlib.sha256(data).digest() + data
        with self.lock:
            error = self._write(path, whole)
            self.unpruned += len(whole)
            is_due = self.unpruned >= PRUNED_EVERY and error is None
            self.unpruned = 0 if is_due else self.unpruned
        if isinstance(error, NotPrivateError):
            self.tell(f"{error.what}: {error.facts}; nothing is kept there", "not private")
        elif error is not None:
            self.tell(f"nothing is kept in {self.path}: {error.strerror or error}", "not kept")
        if is_due:
            try:
                with atomic_write.locked(self.path):
                    prune(self.path, LARGEST)
            except OSError as error:
                why = error.strerror or error
                self.tell(f"{self.path} could not be kept to {LARGEST >> 20} MiB: {why}", "full")

    def _write(self, path: Path, whole: bytes) -> OSError | NotPrivateError | None:
        try:
            private_files.make_folder(self.path, self.given)
            with atomic_write.locked(
                self.path, shared=True
            ):  # nobody removes what is being written
                private_files.make_folder(path.parent, self.given)
                atomic_write.replace_unsynced(path, [whole], mode=0o600)
        except (OSError, NotPrivateError) as error:
            return error
        return None


@cache
def folder_at(given: Path) -> Folder:
    """Return the one object of a folder."""
    return Folder(given)


@dataclass(frozen=True)
class CachedProgram:
    """The cache of one program, part by part."""

    folder: Folder
    name: str

    def __str__(self) -> str:
        return str(self.folder.path / self.name)

    def beside(self, name: str) -> CachedProgram:
        """Return another entry of the folder."""
        return CachedProgram(self.folder, name)

    def beside_for(self, text: str) -> CachedProgram:
        """Return the entry of what compilers make of a text on this machine."""
        return CachedProgram(self.folder, _name(compilers(), text))

    def tell(self, line: str) -> None:
        """Print a line on standard error, once."""
        self.folder.tell(line)

    def get(self, part: str, load: Callable[[bytes], T]) -> T | None:
        """Return a part if it is there; one that cannot be loaded is told of, and made again."""
        path = self.folder.path / self.name / part
        data = self.folder.read(path)
        if data is None:
            return None
        try:
            return load(data)
        except Exception as error:
            self.folder.tell(f"{path} cannot be loaded ({error}); it is made again")
            return None

    def put(self, part: str, data: bytes) -> None:
        """Keep a part."""
        assert PART.fullmatch(part), part  # else it would never be removed
        self.folder.write(self.folder.path / self.name / part, data)


class _Saver(pickle.Pickler):
    """Writes the names of what every process has of its own in its place.

    These are the keys of arrays and functions, and the places of lines among those of the graph:
    an edit above a program moves its lines, and does not change it.
    """

    def __init__(self, file: IO[bytes], graph: Graph):
        super().__init__(file)
        lines = _lines(graph)
        self.places = {loc: k for k, loc in reversed([*enumerate(lines)]) if loc is not None}

    def persistent_id(self, obj: Any) -> str | int | None:
        if isinstance(obj, Loc):
            return self.places.get(obj)
        return obj.key if isinstance(obj, Resource) and obj.value is not None else None


class _Loader(pickle.Unpickler):
    """Puts in the arrays, functions and lines that are at hand."""

    def __init__(self, file: IO[bytes], graph: Graph):
        super().__init__(file)
        self.resources, self.lines = by_key(graph.resources()), _lines(graph)

    def persistent_load(self, pid: str | int) -> Resource[Any] | Loc | None:
        return self.lines[pid] if isinstance(pid, int) else self.resources[pid]


def _lines(graph: Graph) -> list[Loc | None]:
    """Return the lines of all equations and their branches, in one order."""
    return [loc for n in graph.nodes.values() for loc in (n.loc, *n.locs)]


def program(entry: CachedProgram | None, graph: Graph, compile: Callable[[], T]) -> T:
    """A compiled program: the one that is kept, or a new one, which is.

    Its arrays and functions, and the lines that it was written in, are those of `graph`.
    """
    if entry is None:
        return _compiled(compile)
    found: T | None = entry.get("program", lambda data: _Loader(BytesIO(data), graph).load())
    if found is not None:
        return found
    made, file = _compiled(compile), BytesIO()
    _Saver(file, graph).dump(made)
    entry.put("program", file.getvalue())
    return made


def _compiled(compile: Callable[[], T]) -> T:
    with notice_if_long("compiling the program"):
        return compile()


def entry(
    given: Path,
    graph: Graph,
    sizes: Mapping[str, int],
    options: CompileOptions,
    target: Target,
) -> CachedProgram | None:
    """Find the cache entry of a program; None: a function of it cannot be told from others."""
    functions: list[str] = []
    for n in graph.nodes.values():
        if isinstance(n.op, Foreign):
            tell = getattr(n.op.fn.value, "text", None)
            if tell is None:
                return None
            functions.append(f"{n.op.fn.key}: {tell([graph.read_type(a) for a in n.args])}")
    arrays = {
        n.op.key.key: hashlib.sha256(n.op.key.get().tobytes()).hexdigest()
        for n in graph.nodes.values()
        if isinstance(n.op, Data)
    }
    known = [str(graph), sorted(sizes.items()), options, target, this_code(), compilers()]
    name = _name(*known, sorted(arrays.items()), functions)
    return CachedProgram(folder_at(given), name)


def _name(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@cache
def this_code() -> str:
    """Our source."""
    digest = hashlib.sha256()
    root = Path(errors.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def compilers() -> str:
    """The libraries that compile, and the processor that they compile for."""
    versions: list[str] = []
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"no {name}")
    return f"{versions} {platform.python_version()} {cpu.fingerprint()}"


def prune(root: Path, largest: int) -> None:
    """Remove the entries that were not used for longest, until the others have room.

    Nothing is removed but files of the names that we give them, in folders of the names that we
    give them, and no link is followed. Whoever reads an entry meanwhile does not find a part, and
    makes it again. Raises OSError if there is no room after all.
    """
    found: list[tuple[float, int, list[str], str]] = []
    with os.scandir(root) as entries:
        names = [e for e in entries if ENTRY.fullmatch(e.name)]
        folders = [e.path for e in names if e.is_dir(follow_symlinks=False)]
    for folder in folders:
        parts = _parts(folder)
        size, used = sum(s.st_size for s in parts.values()), (s.st_mtime for s in parts.values())
        found.append((max(used, default=0.0), size, list(parts), folder))
    total = sum(size for _, size, _, _ in found)
    failed: OSError | None = None
    for _, size, parts, folder in sorted(found)[:-1]:
        if total > largest:
            try:
                _remove(folder, parts)
                total -= size
            except OSError as error:
                failed = error
    if failed is not None:
        raise failed


def _remove(folder: str, parts: Iterable[str]) -> None:
    for path in parts:
        with suppress(FileNotFoundError):
            os.unlink(path)
    with suppress(OSError):  # somebody else's file is in it, or a new one of ours
        os.rmdir(folder)


def _parts(folder: str) -> dict[str, os.stat_result]:
    """Return the files of an entry that are ours, by path."""
    found: dict[str, os.stat_result] = {}
    with suppress(FileNotFoundError), os.scandir(folder) as files:  # somebody else makes room, too
        for file in files:
            if PART.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    found[file.path] = file.stat(follow_symlinks=False)
    return found
