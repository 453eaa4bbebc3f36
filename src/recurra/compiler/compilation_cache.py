"""The compilation cache: programs and regions that an earlier process compiled.

    RECURRA_CACHE/recurra/programs/3f0c../program          passes, schedule, plan and host code
    RECURRA_CACHE/recurra/programs/3f0c../region_1_i-9b..  the name of a region's code
    RECURRA_CACHE/recurra/programs/52e1../code             a region that XLA compiled

An entry is named by a hash of everything that its content depends on: for a program the equations,
with their arrays and functions, bounds, options, this code, its libraries and the machine; for
a region its text for XLA, the libraries and the machine. A part is a digest and the data. Entries
are code: they are loaded only if nobody else can write them. To empty the cache, delete the folder
`programs`.
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
from typing import IO, TypeVar

from recurra import errors
from recurra.compiler.options import CompileOptions
from recurra.cost.target import Target
from recurra.errors import Loc
from recurra.ir.graph import Graph
from recurra.ir.user_objects import Resource, by_key
from recurra.ops.control import Foreign
from recurra.ops.source import Data
from recurra.support import atomic_write, cpu, private_files
from recurra.support.notices import notice_if_long
from recurra.support.private_files import NotPrivateError

LARGEST = 1 << 30  # bytes of a cache, about 300 programs like a PPO: the last ones used are kept
PRUNED_EVERY = LARGEST >> 5  # bytes that a process writes before it checks the size again
LIBRARIES = ("jax", "jaxlib", "numpy")
OURS = Path("recurra", "programs")  # below the folder that is given; nothing else is ever removed
ENTRY = re.compile(r"[0-9a-f]{32}")
PART = re.compile(
    rf"({re.escape(atomic_write.TEMPORARY)}\d+-)?(program|code|memory-\d+|\w+-[0-9a-f]{{12}})"
)
DIGEST = hashlib.sha256().digest_size
T = TypeVar("T")


class Folder:
    """The folder of the entries; several threads may use it at once."""

    def __init__(self, root: Path):
        self.root, self.path = root, root / OURS
        self.lock = Lock()
        self.warned: set[str] = set()
        self.unpruned = PRUNED_EVERY

    def __reduce__(self) -> tuple[object, ...]:
        return folder_at, (self.root,)

    def tell(self, line: str, kind: str = "") -> None:
        """Print a line on standard error, the first of its kind."""
        with self.lock:
            new = (kind or line) not in self.warned
            self.warned.add(kind or line)
        if new:
            print(f"recurra: {line}", file=sys.stderr)

    def read(self, path: Path) -> bytes | None:
        """Return a part if it exists, is intact, and nobody else can have written it."""
        try:
            data = private_files.read(path, self.root)
        except NotPrivateError as error:
            self.tell(f"{error.what}: {error.facts}; it is compiled anew", "not private")
            return None
        except OSError:
            return None
        with suppress(OSError):  # the file system may be read-only
            os.utime(path)
        if hashlib.sha256(data[DIGEST:]).digest() == data[:DIGEST]:
            return data[DIGEST:]
        self.tell(f"{path} is damaged; it is made again")
        return None

    def write(self, path: Path, data: bytes) -> None:
        """Write a part, all or nothing, and prune the folder; warn if either fails."""
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
            private_files.make_folder(self.path, self.root)
            with atomic_write.locked(self.path, shared=True):  # against pruning
                private_files.make_folder(path.parent, self.root)
                atomic_write.replace_unsynced(path, [whole], mode=0o600)
        except (OSError, NotPrivateError) as error:
            return error
        return None


@cache
def folder_at(root: Path) -> Folder:
    """Return the only object of a folder."""
    return Folder(root)


@dataclass(frozen=True)
class CachedProgram:
    """The cache entry of a program, which has parts."""

    folder: Folder
    name: str

    def __str__(self) -> str:
        return str(self.folder.path / self.name)

    def sibling(self, name: str) -> CachedProgram:
        """Return another entry of the folder."""
        return CachedProgram(self.folder, name)

    def sibling_for(self, text: str) -> CachedProgram:
        """Return the entry of a text that is compiled for this machine."""
        return CachedProgram(self.folder, _name(compilers(), text))

    def tell(self, line: str) -> None:
        """Print a line on standard error, once."""
        self.folder.tell(line)

    def get(self, part: str, load: Callable[[bytes], T]) -> T | None:
        """Return a part if it exists and can be loaded; warn if it cannot."""
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
        """Store a part."""
        assert PART.fullmatch(part), part  # else it would never be removed
        self.folder.write(self.folder.path / self.name / part, data)


class _Saver(pickle.Pickler):
    """A pickler that writes references to objects that differ from process to process.

    These are arrays and functions, by their keys, and source lines, by their positions in the
    graph: an edit above a program moves its lines without changing the program.
    """

    def __init__(self, file: IO[bytes], graph: Graph):
        super().__init__(file)
        lines = _lines(graph)
        self.places = {loc: k for k, loc in reversed([*enumerate(lines)]) if loc is not None}

    def persistent_id(self, obj: object) -> str | int | None:
        if isinstance(obj, Loc):
            return self.places.get(obj)
        return obj.key if isinstance(obj, Resource) and obj.value is not None else None


class _Loader(pickle.Unpickler):
    """An unpickler that resolves references to the arrays, functions and lines of a graph."""

    def __init__(self, file: IO[bytes], graph: Graph):
        super().__init__(file)
        self.resources, self.lines = by_key(graph.resources()), _lines(graph)

    def persistent_load(self, pid: str | int) -> Resource[object] | Loc | None:
        return self.lines[pid] if isinstance(pid, int) else self.resources[pid]


def _lines(graph: Graph) -> list[Loc | None]:
    """Return the source lines of all equations and their branches, in a fixed order."""
    return [loc for n in graph.nodes.values() for loc in (n.loc, *n.locs)]


def load_or_compile(entry: CachedProgram | None, graph: Graph, compile: Callable[[], T]) -> T:
    """Return a compiled program: the cached one, or a new one, which is then cached.

    Its arrays, functions and source lines are those of `graph`.
    """
    cached: T | None = None
    if entry is not None:
        cached = entry.get("program", lambda data: _Loader(BytesIO(data), graph).load())
    if cached is not None:
        return cached
    with notice_if_long("compiling the program"):
        new = compile()
    if entry is not None:
        file = BytesIO()
        _Saver(file, graph).dump(new)
        entry.put("program", file.getvalue())
    return new


def entry(
    root: Path,
    graph: Graph,
    sizes: Mapping[str, int],
    options: CompileOptions,
    target: Target,
) -> CachedProgram | None:
    """Return the cache entry of a program; None if one of its functions has no text to hash."""
    functions: list[str] = []
    for n in graph.nodes.values():
        if isinstance(n.op, Foreign):
            text = getattr(n.op.fn.value, "text", None)
            if text is None:
                return None
            functions.append(f"{n.op.fn.key}: {text([graph.read_type(a) for a in n.args])}")
    arrays = {
        n.op.key.key: hashlib.sha256(n.op.key.get().tobytes()).hexdigest()
        for n in graph.nodes.values()
        if isinstance(n.op, Data)
    }
    known = [str(graph), sorted(sizes.items()), options, target, this_code(), compilers()]
    name = _name(*known, sorted(arrays.items()), functions)
    return CachedProgram(folder_at(root), name)


def _name(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@cache
def this_code() -> str:
    """A digest of the source of recurra."""
    digest = hashlib.sha256()
    root = Path(errors.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def compilers() -> str:
    """The versions of the libraries that compile, and the processor."""
    versions: list[str] = []
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"no {name}")
    return f"{versions} {platform.python_version()} {cpu.fingerprint()}"


def prune(root: Path, largest: int) -> None:
    """Remove the least recently used entries until the others take at most `largest` bytes.

    Only files and folders with our names are removed, and no link is followed. A process that reads
    an entry meanwhile misses a part, and compiles it again. Raises OSError if an entry that must go
    cannot be removed.
    """
    sizes: list[tuple[float, int, list[str], str]] = []
    with os.scandir(root) as entries:
        names = [e for e in entries if ENTRY.fullmatch(e.name)]
        folders = [e.path for e in names if e.is_dir(follow_symlinks=False)]
    for folder in folders:
        parts = _parts(folder)
        size, used = sum(s.st_size for s in parts.values()), (s.st_mtime for s in parts.values())
        sizes.append((max(used, default=0.0), size, list(parts), folder))
    total = sum(size for _, size, _, _ in sizes)
    failed: OSError | None = None
    for _, size, parts, folder in sorted(sizes)[:-1]:
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
    with suppress(OSError):  # another file is in it
        os.rmdir(folder)


def _parts(folder: str) -> dict[str, os.stat_result]:
    """Return the parts of an entry, by path."""
    found: dict[str, os.stat_result] = {}
    with suppress(FileNotFoundError), os.scandir(folder) as files:  # another process prunes, too
        for file in files:
            if PART.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    found[file.path] = file.stat(follow_symlinks=False)
    return found
