"""From nothing to the first iterations: a Python that starts, imports, compiles, and runs two.

Seconds of the process on all cores, the least of three; the second start finds in RECURRA_CACHE
what the first one left there.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import machine
from benchmarks.core.budgets import best
from benchmarks.harness import Row, progress
from benchmarks.ppo.contest import LAUNCH
from benchmarks.ppo.installed import Peer
from benchmarks.ppo.workload import Work
from benchmarks.process import Ended
from benchmarks.worker import environment, in_worker
from recurra.report.progress import track

TIMES, QUICK_TIMES = 3, 1
FIRST_S, SECOND_S, OURS_S = 8.0, 2.0, 2.0  # budgets
SCRIPT = """
import json, sys
from importlib import import_module
from benchmarks.ppo.workload import Work
module, function = sys.argv[1].split(":")
getattr(import_module(module), function)(Work(**json.loads(sys.argv[2]))).run(int(sys.argv[3]))
"""


def starts(mine: Peer, peers: Sequence[Peer], work: Work, quick: bool) -> list[Row]:
    """Ours beside its budgets, and first starts beside those of peers."""
    times = QUICK_TIMES if quick else TIMES
    busy = machine.busy()
    case = f"{work}" + (f", {busy:.1f} cores busy" if busy >= machine.IDLE_LOAD else "")
    found: list[list[float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="recurra-bench-") as folder,
        track(times, "start") as bar,
    ):
        for k in range(times):
            first, second = (start(mine, work, Path(folder) / str(k)) for _ in range(2))
            found.append([first, second, *(start(peer, work) for peer in peers)])
            bar.update(k + 1)
    first, second, *theirs = (min(column) for column in zip(*found, strict=True))
    own = in_worker(compile_seconds, {"work": asdict(work), "times": times}, threads=1)
    rows = [
        row(f"{case}: first start, with two iterations", "start_s", first, "budget", FIRST_S),
        row(f"{case}: second start, RECURRA_CACHE", "start_s", second, "budget", SECOND_S),
        row(f"{work}: trace and compile without XLA", "compile_s", own, "budget", OURS_S),
    ]
    case = f"{case}: first start, with two iterations"
    names = (peer.make.split(":")[1].replace("_", " ") for peer in peers)
    return rows + [
        row(case, "start_s", first, name, s) for name, s in zip(names, theirs, strict=True)
    ]


def start(peer: Peer, work: Work, cache: Path | None = None) -> float:
    """CPU seconds of a process that makes the program and runs its first iterations."""
    kept = "0" if cache is None else str(cache)
    env = environment(OMP_NUM_THREADS="1", RECURRA_CACHE=kept)
    arguments = [peer.make, json.dumps(asdict(work)), str(LAUNCH)]
    since = of_children()
    done = subprocess.run(
        [peer.python, "-c", SCRIPT, *arguments], env=env, stdout=sys.stderr, check=False
    )
    seconds = of_children() - since
    if done.returncode:
        raise Ended(
            f"{peer.make} does not start",
            facts=f"its process ended with code {done.returncode}; the reason is printed above",
        )
    return seconds


def of_children() -> float:
    """CPU seconds of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compile_seconds(work: dict[str, int], times: int) -> float:
    """Process CPU of our trace and our passes, without XLA; the least of some."""
    from benchmarks.ppo.recurra_program import program

    return best(lambda: program(Work(**work), 10**6, launch_steps=LAUNCH), times)


def row(case: str, metric: str, ours: float, peer: str, theirs: float) -> Row:
    """Seconds."""
    progress(f"{case}: {ours:.2f} s, {peer} {theirs:.2f} s")
    ratio = theirs / ours
    return Row(case, metric, ours, peer, theirs, ratio, (ratio, ratio), None, "none")
