"""Whole decodes, each in a process of its own: time and memory, token by token."""

from __future__ import annotations

import gc
import resource
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.decode.contestants import makers
from benchmarks.decode.workload import LAUNCH, Work
from benchmarks.harness import Row, progress
from benchmarks.worker import in_worker
from recurra.errors import RecurraError

PROMPT = 16  # tokens, of a whole decode
COMPILES = 2  # launches
SMALL = 96  # positions of the decode that loads libraries before anything is counted


@dataclass(frozen=True)
class Decode:
    """What one process saw: `ms` of process CPU per token and `held` bytes after each launch.

    Bytes are resident memory less that of the process after a small decode: weights, caches and
    what is beside them, not the libraries. `peak` is the most that it ever was.
    """

    ms: tuple[float, ...]
    held: tuple[int, ...]
    peak: int

    @property
    def mean(self) -> float:
        """Between tokens, without the launches that compile: the prompt's, and the one after."""
        return sum(self.ms[COMPILES:]) / max(1, len(self.ms) - COMPILES)


def decoded(work: Work, who: str, threads: int, launches: int | None = None) -> Decode | None:
    """A decode up to its end, or of some launches; None where it fails, which is told."""
    arguments = dict(work=work.json(), who=who, threads=threads, launches=launches)
    progress(f"{work} {who}")
    try:
        found = in_worker(decode, arguments, threads)
    except RecurraError as error:
        progress(f"{work} {who}: left out: {error}")
        return None
    return Decode(tuple(found["ms"]), tuple(found["held"]), found["peak"])


def decode(work: dict[str, Any], who: str, threads: int, launches: int | None) -> dict[str, Any]:
    """The same in this process."""
    given, make = Work(**work), makers()[who]
    if "JAX" not in who and who != "ours":
        import torch

        torch.set_num_threads(threads)
    make(replace(given, T=SMALL, start=PROMPT, L=1, V=64)).run(LAUNCH)
    gc.collect()
    before = resident()
    contestant, ms, held = make(given), list[float](), list[int]()
    count = (given.T - given.prompt) // LAUNCH - 1
    for _ in range(count if launches is None else min(count, launches)):
        since = time.process_time()
        contestant.run(LAUNCH)
        ms.append((time.process_time() - since) * 1e3 / LAUNCH)
        held.append(resident() - before)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return asdict(Decode(tuple(ms), tuple(held), max(peak, *held)))


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peaks(work: Work, threads: int) -> list[Row]:
    """Peak memory net of the libraries', ours beside everyone's, after a few launches."""
    found: dict[str, Decode] = {}
    for who in makers():
        one = decoded(work, who, threads, launches=2)
        if one is not None:
            found[who] = one
    if "ours" not in found:
        return []
    mine = found.pop("ours").peak / 1e6
    return [_row(work, mine, who, x.peak / 1e6) for who, x in found.items()]


def _row(work: Work, ours: float, who: str, theirs: float) -> Row:
    ratio = theirs / ours
    return Row(str(work), "peak_MB", ours, who, theirs, ratio, (ratio, ratio), None, "none")
