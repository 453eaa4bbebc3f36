"""cache: what compiling made, kept for the next start in the folder that RECURRA_CACHE names.

    RECURRA_CACHE/3f0c../program          passes, schedule, plan and host code
    RECURRA_CACHE/3f0c../region_1_i-9b..  a region as XLA made it for this machine

The name of an entry is a hash of all that decides what is made: the equations, with the arrays and
functions that they name, bounds, options, this code, its libraries and the machine. To empty the
cache, delete the folder.
"""

from __future__ import annotations

import hashlib
import pickle
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import IO, Any, TypeVar

import recurra
from recurra import processor
from recurra.compiler.options import CompileOptions
from recurra.cost.target import Target
from recurra.ir.graph import Graph
from recurra.ir.resource import Resource, by_key
from recurra.ops.control import Foreign
from recurra.ops.source import Data
from recurra.report import atomic

LARGEST = 2 << 30  # bytes of a cache: the entries used last
LIBRARIES = ("jax", "jaxlib", "numpy")
T = TypeVar("T")


class Entry:
    """What is kept of one program."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def get(self, name: str, load: Callable[[bytes], T]) -> T | None:
        """A part that is there and can be loaded; one that cannot is told of, and made again."""
        path = self.folder / name
        try:
            data = path.read_bytes()
            path.touch()
        except OSError:
            return None
        try:
            return load(data)
        except Exception as error:
            print(f"recurra: {path} is damaged ({error}); it is made again", file=sys.stderr)
            return None

    def put(self, name: str, data: bytes) -> None:
        """Keeps a part; where there is no room it is told of, and nothing is kept."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic.replace(self.folder / name, [data])
            prune(self.folder.parent, LARGEST)
        except OSError as error:
            print(f"recurra: nothing is kept in {self.folder}: {error}", file=sys.stderr)


class _Saver(pickle.Pickler):
    """Writes the keys of arrays and functions in their place."""

    def persistent_id(self, obj: Any) -> str | None:
        return obj.key if isinstance(obj, Resource) and obj.value is not None else None


class _Loader(pickle.Unpickler):
    """Puts in the arrays and functions that are at hand."""

    def __init__(self, file: IO[bytes], resources: Mapping[str, Resource[Any]]):
        super().__init__(file)
        self.resources = resources

    def persistent_load(self, pid: str) -> Resource[Any]:
        return self.resources[pid]


def program(entry: Entry | None, graph: Graph, compile: Callable[[], T]) -> T:
    """A compiled program: the one that is kept, or a new one, which is.

    Its arrays and functions are those of `graph`, which it is compiled from.
    """
    if entry is None:
        return compile()
    resources = by_key(graph.resources())
    found: T | None = entry.get("program", lambda data: _Loader(BytesIO(data), resources).load())
    if found is not None:
        return found
    made, file = compile(), BytesIO()
    _Saver(file).dump(made)
    entry.put("program", file.getvalue())
    return made


def entry(
    folder: Path,
    graph: Graph,
    sizes: Mapping[str, int],
    options: CompileOptions,
    target: Target,
) -> Entry | None:
    """Where a program is kept; None: a function of it cannot be told from others."""
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
    known = [str(graph), sorted(sizes.items()), options, target, this_code()]
    key = hashlib.sha256(repr([*known, sorted(arrays.items()), functions]).encode())
    return Entry(folder / key.hexdigest()[:32])


@cache
def this_code() -> str:
    """Our source, the libraries and the processor that regions are made for."""
    digest = hashlib.sha256()
    root = Path(recurra.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    versions: list[str] = []
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"no {name}")
    return f"{digest.hexdigest()} {versions} {platform.python_version()} {processor.described()}"


def prune(root: Path, largest: int) -> None:
    """Drops the entries that were not used for longest, until there is room."""
    found: list[tuple[float, int, Path]] = []
    for folder in root.iterdir():
        files = [p.stat() for p in folder.iterdir()] if folder.is_dir() else []
        if files:
            found.append((max(s.st_mtime for s in files), sum(s.st_size for s in files), folder))
    total = sum(size for _, size, _ in found)
    for _, size, folder in sorted(found)[:-1]:
        if total > largest:
            shutil.rmtree(folder, ignore_errors=True)
            total -= size
