"""Kernels on disk: the best nest that was found for a problem, on one kind of processor.

    <folder>/<processor>/<target>-<threads>-<hash of the problem>.json

`recurra tune` writes here, `recurra.nest.compile` looks here. Entries hold nests, not code: what is
read is checked like any other text, and compiled anew. A file is written beside its place and then
moved there, so that readers see the old entry or the new one; writers take turns by a lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra import processor
from recurra.config import config
from recurra.errors import RecurraError
from recurra.nest.loops import Nest, parse
from recurra.nest.problem import Problem
from recurra.support.private_files import user_cache_folder

FORMAT = 1


@dataclass(frozen=True)
class Kept:
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
    """RECURRA_KERNELS, or recurra/kernels where the user's caches are."""
    return config().kernels or user_cache_folder() / "recurra" / "kernels"


def path(problem: Problem, target: str, threads: int = 1) -> Path:
    """Where the entry of a problem is, or would be."""
    digest = hashlib.sha256(str(problem).encode()).hexdigest()[:24]
    return folder() / processor.kind() / f"{target}-{threads}-{digest}.json"


def load(problem: Problem, target: str, threads: int = 1) -> Kept | None:
    """The entry of a problem; raises RecurraError where its file is not as it was written."""
    place = path(problem, target, threads)
    try:
        text = place.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _corrupt(place, str(error)) from None
    found = _read(place, text)
    if (found.nest.problem, found.target, found.threads) != (problem, target, threads):
        wanted = f"{problem.statement} on {target}, threads {threads}"
        raise _corrupt(place, f"it is of another problem than its name says, {wanted}")
    return found


def save(entry: Kept) -> bool:
    """Keeps an entry, unless one is there that is as good; was it kept?

    Raises RecurraError where the folder cannot be written.
    """
    place = path(entry.nest.problem, entry.target, entry.threads)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place.parent):
            before = load(entry.nest.problem, entry.target, entry.threads)
            if before is not None and before.of_peak >= entry.of_peak:
                return False
            _write(place, entry)
    except OSError as error:
        raise RecurraError(f"{place.parent} cannot be written", facts=str(error)) from None
    return True


def _write(place: Path, entry: Kept) -> None:
    given: dict[str, Any] = {
        "format": FORMAT,
        "target": entry.target,
        "threads": entry.threads,
        "seconds": entry.seconds,
        "gflops": entry.gflops,
        "of_peak": entry.of_peak,
        "search": entry.search,
        "nest": str(entry.nest),
    }
    text = json.dumps({**given, "digest": _digest(given)}, indent=1)
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


def _read(place: Path, text: str) -> Kept:
    try:
        given = json.loads(text)
        digest = given.pop("digest")
        if given["format"] != FORMAT:
            raise ValueError(f"format {given['format']}, not {FORMAT}")
        if digest != _digest(given):
            raise ValueError("its content does not give its digest")
        nest = parse(given.pop("nest"))
        del given["format"]
        return Kept(nest, **given)
    except KeyError as error:
        raise _corrupt(place, f"it has no {error}") from None
    except (ValueError, TypeError, AttributeError, RecurraError) as error:
        raise _corrupt(place, str(error).replace("\n", " ")) from None


def _digest(given: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()


@contextmanager
def _alone(parent: Path) -> Generator[None]:
    """One writer at a time; readers need not wait."""
    import fcntl

    with (parent / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _corrupt(place: Path, facts: str) -> RecurraError:
    return RecurraError(
        f"{place} is no kept kernel",
        facts=facts,
        hint="remove it, and tune again",
    )
