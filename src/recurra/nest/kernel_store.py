"""Kernels on disk: the best nest that was found for a problem, on one kind of processor.

    <folder>/<processor>/<target>-<threads>-<hash of the problem>.json

`recurra tune` writes them and `recurra.nest.compile` reads them. Problems are stored in their
canonical form, so that letters and the order of inputs do not matter. Entries hold nests, not code:
a nest is parsed and checked like any other text, and compiled. Damaged entries are ignored, with a
notice. Files are replaced atomically, and writers hold a lock.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from recurra.config import environment
from recurra.errors import RecurraError
from recurra.nest.canonical_form import canonical_form
from recurra.nest.loops import Nest, parse
from recurra.nest.problem import NestProblem
from recurra.support import atomic_write, cpu, json_text
from recurra.support.notices import tell_once
from recurra.support.private_files import cache_folder

FORMAT = 1
LARGEST = 2**20  # bytes of an entry: a hundred times as many as the longest nest takes


@dataclass(frozen=True)
class StoredNest:
    """The best nest of a problem so far, and how it was measured."""

    nest: Nest
    target: str
    threads: int
    seconds: float
    gflops: float
    of_peak: float
    """Share of the GFLOPS that a probe reached in the same rounds: entries are compared by it"""
    search: str


def folder() -> Path:
    """Return RECURRA_KERNELS, or recurra/kernels in the cache folder."""
    return environment().kernels or cache_folder() / "recurra" / "kernels"


def path(problem: NestProblem, target: str, threads: int = 1) -> Path:
    """Return the path of a problem's entry."""
    return _place(canonical_form(problem).problem, target, threads)


def _place(canonical: NestProblem, target: str, threads: int) -> Path:
    digest = hashlib.sha256(str(canonical).encode()).hexdigest()[:24]
    return folder() / cpu.kind() / f"{target}-{threads}-{digest}.json"


def load(problem: NestProblem, target: str, threads: int = 1) -> StoredNest | None:
    """Return the entry of a problem, its nest in the problem's own letters; None if there is none.

    A damaged one is ignored, with a notice.
    """
    form = canonical_form(problem)
    try:
        place = _place(form.problem, target, threads)
    except RecurraError as error:
        tell_once(f"tuned kernels are not looked for: {error.facts}")
        return None
    try:
        found = _read(place)
        if (found.nest.problem, found.target, found.threads) != (form.problem, target, threads):
            raise ValueError("it is of another problem than its name says")
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever is in a file, a program goes on without it
        facts = f"it has no {error}" if isinstance(error, KeyError) else str(error) or repr(error)
        tell_once(f"{place} is no kept kernel: {' '.join(facts.split())}; it is passed over")
        return None
    return replace(found, nest=form.to_original(found.nest))


def expect_writable(problem: NestProblem, target: str, threads: int = 1) -> None:
    """Raise RecurraError unless an entry of this problem can be written."""
    parent = path(problem, target, threads).parent
    with _writing(parent), tempfile.TemporaryFile(dir=parent):
        pass


def save(entry: StoredNest) -> bool:
    """Store an entry unless there is one as good, and return whether it was stored.

    Raises RecurraError where the folder cannot be written.
    """
    problem = entry.nest.problem
    place = path(problem, entry.target, entry.threads)
    with _writing(place.parent):
        before = load(problem, entry.target, entry.threads)
        if before is not None and before.of_peak >= entry.of_peak:
            return False
        content: dict[str, object] = {
            "format": FORMAT,
            "target": entry.target,
            "threads": entry.threads,
            "seconds": entry.seconds,
            "gflops": entry.gflops,
            "of_peak": entry.of_peak,
            "search": entry.search,
            "nest": str(canonical_form(problem).to_canonical(entry.nest)),
        }
        text = json.dumps({**content, "digest": digest_of(content)}, indent=1)
        atomic_write.replace(place, [text.encode()])
    return True


def _read(place: Path) -> StoredNest:
    """Return the entry in a file; raise OSError, or any other exception if it is no entry."""
    flag = getattr(os, "O_NONBLOCK", 0)  # not to wait for a writer of a pipe
    with open(place, "rb", opener=lambda name, flags: os.open(name, flags | flag)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no file")
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    content = json_text.parse(text)
    if not isinstance(content, dict):
        raise ValueError(f"it is {json.dumps(content):.60}, and no entry")
    digest = content.pop("digest")
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}, not {FORMAT}")
    if digest != digest_of(content):
        raise ValueError("its content does not give its digest")
    del content["format"]
    found = StoredNest(parse(content.pop("nest")), **content)
    for name in ("seconds", "gflops", "of_peak"):
        if not math.isfinite(getattr(found, name)):
            raise ValueError(f"its {name} is no number")
    return found


def digest_of(content: dict[str, object]) -> str:
    """Return the checksum of an entry."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def _writing(parent: Path) -> Generator[None]:
    """Create a folder and lock it against other writers; raise RecurraError if it fails."""
    import fcntl

    try:
        parent.mkdir(parents=True, exist_ok=True)
        with (parent / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise RecurraError(
            f"{parent} cannot be written",
            facts=str(error),
            hint="make room, or name another folder: RECURRA_KERNELS=/folder",
        ) from None
