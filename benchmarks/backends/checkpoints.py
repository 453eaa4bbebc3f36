"""What checkpoints cost: one after every iteration, and going on from one."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core.budgets import best, row
from benchmarks.core.recurra_program import LAUNCH, program
from benchmarks.core.workload import SEED
from benchmarks.harness import Row
from benchmarks.pairs import Clock, interleaved, ratio
from recurra.checkpoint.background_writer import BackgroundWriter

B, T = 512, 250
RESUME_MS, PER_CENT = 100.0, 5.0
ROUNDS, THREADS = 20, 2  # what is written is written behind: on the other core


def measure() -> list[dict[str, Any]]:
    """The rows, in this process."""
    folder = Path(tempfile.mkdtemp(prefix="recurra-bench-"))
    try:
        rows = [every_iteration(folder, "wall"), every_iteration(folder, "cpu"), resuming(folder)]
        return [asdict(r) for r in rows]
    finally:
        shutil.rmtree(folder)


def every_iteration(folder: Path, clock: Clock) -> Row:
    """Iterations that are saved beside iterations that are not, in interleaved pairs."""
    whole = 2 * LAUNCH * (ROUNDS + 2)
    saving = program(B, T, whole, False, saved=str(folder))
    plain = program(B, T, whole, False)
    runs = [stepper(saving, saves=True), stepper(plain, saves=False)]
    ms = interleaved(runs, iterations=LAUNCH, rounds=ROUNDS, clock=clock)
    middle, (low, high) = ratio(ms[:, 1], ms[:, 0])  # saved / plain
    case = f"T={T} B={B}, a checkpoint after every iteration, {clock}"
    made = row(case, "per_cent_slower", slower(middle), PER_CENT, THREADS)
    return replace(made, ci95=(PER_CENT / slower(high), PER_CENT / slower(low)))


def slower(ratio: float) -> float:
    """A ratio of times as per cent, and not below what can be told from nothing."""
    return max(100 * (ratio - 1), 0.01)


def stepper(executable: Any, saves: bool) -> Any:
    """run(k): k more iterations, each saved after it was made, as `program.run` does."""
    steps, behind = executable.execution.steps(SEED), BackgroundWriter()

    def run(index: int) -> None:
        done = 0
        while done < index:
            step = next(steps)
            done += step.hi - step.lo
            if saves:
                executable.saver.state(step, SEED, behind)

        behind.wait()

    return run


def resuming(folder: Path) -> Row:
    """From a checkpoint to the first launch: found, checked, read, put back."""
    saving = program(B, T, 2 * LAUNCH * (ROUNDS + 2), False, saved=str(folder))

    def load() -> None:
        (time_, variables), _ = saving.saver.load(folder)
        for x in variables.values():
            np.asarray(saving.backend.array(x))
        assert time_ > 0

    return row("going on from a checkpoint", "resume_ms", best(load, 5) * 1e3, RESUME_MS, THREADS)
