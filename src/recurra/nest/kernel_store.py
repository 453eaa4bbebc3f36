"""Kernels on disk: the best nest that was found for a problem, on one kind of processor.

    <folder>/<processor>/<target>-<threads>-<hash of the problem>.json

`recurra tune` writes here, `recurra.nest.compile` looks here. Problems are kept in their canonical
form, so that letters and the order of inputs do not matter. Entries hold nests, not code: what is
read is checked like any other text, and compiled anew; what is damaged is passed over, and told of.
A file is written beside its place and then moved there, so that readers see the old entry or the
new one; writers take turns by a lock.
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
from recurra.support import cpu, json_text
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
    """Of what a probe reached in the same rounds: entries are compared by it"""
    search: str


def folder() -> Path:
    """RECURRA_KERNELS, or recurra/kernels where caches are."""
    return environment().kernels or cache_folder() / "recurra" / "kernels"


def path(problem: NestProblem, target: str, threads: int = 1) -> Path:
    """Return where the entry of a problem is, or would be."""
    return _place(canonical_form(problem).problem, target, threads)


def _place(canonical: NestProblem, target: str, threads: int) -> Path:
    digest = hashlib.sha256(str(canonical).encode()).hexdigest()[:24]
    return folder() / cpu.kind() / f"{target}-{threads}-{digest}.json"


def load(problem: NestProblem, target: str, threads: int = 1) -> StoredNest | None:
    """Return the entry of a problem, its nest in the problem's own letters; None if there is none.

    One whose file is not as it was written is passed over, and told of.
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
    return replace(found, nest=form.to_given(found.nest))


def expect_writable(problem: NestProblem, target: str, threads: int = 1) -> None:
    """Raises RecurraError where an entry of this problem could not be kept, as before a search."""
    parent = path(problem, target, threads).parent
    with _writing(parent), tempfile.TemporaryFile(dir=parent):
        pass


def save(entry: StoredNest) -> bool:
    """Keep an entry, unless one is there that is as good; tell whether it was kept.

    Raises RecurraError where the folder cannot be written.
    """
    problem = entry.nest.problem
    place = path(problem, entry.target, entry.threads)
    with _writing(place.parent):
        before = load(problem, entry.target, entry.threads)
        if before is not None and before.of_peak >= entry.of_peak:
            return False
        nest = canonical_form(problem).to_canonical(entry.nest)
        _write(place, replace(entry, nest=nest))
    return True


def _write(place: Path, entry: StoredNest) -> None:
    given: dict[str, object] = {
        "format": FORMAT,
        "target": entry.target,
        "threads": entry.threads,
        "seconds": entry.seconds,
        "gflops": entry.gflops,
        "of_peak": entry.of_peak,
        "search": entry.search,
        "nest": str(entry.nest),
    }
    text = json.dumps({**given, "digest": digest_of(given)}, indent=1)
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read(place: Path) -> StoredNest:
    """Return what is in a file; raises OSError, or any other exception if it is no entry."""
    waits_not = getattr(os, "O_NONBLOCK", 0)  # for who may write to a pipe
    with open(place, "rb", opener=lambda name, flags: os.open(name, flags | waits_not)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no file")
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    given = json_text.parse(text)
    if not isinstance(given, dict):
        raise ValueError(f"it is {json.dumps(given):.60}, and no entry")
    digest = given.pop("digest")
    if given["format"] != FORMAT:
        raise ValueError(f"format {given['format']}, not {FORMAT}")
    if digest != digest_of(given):
        raise ValueError("its content does not give its digest")
    del given["format"]
    found = StoredNest(parse(given.pop("nest")), **given)
    for name in ("seconds", "gflops", "of_peak"):
        if not math.isfinite(getattr(found, name)):
            raise ValueError(f"its {name} is no number")
    return found


def digest_of(given: dict[str, object]) -> str:
    """Return what tells whether an entry is as it was written."""
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()


@contextmanager
def _writing(parent: Path) -> Generator[None]:
    """One writer at a time, in a folder that is there; raises RecurraError if it cannot write."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _alone(parent):
            yield
    except OSError as error:
        raise RecurraError(
            f"{parent} cannot be written",
            facts=str(error),
            hint="make room, or name another folder: RECURRA_KERNELS=/folder",
        ) from None


@contextmanager
def _alone(parent: Path) -> Generator[None]:
    """One writer at a time; readers need not wait."""
    import fcntl

    with (parent / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
