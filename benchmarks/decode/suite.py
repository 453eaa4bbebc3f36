"""Time per token at the middle of a text, ours beside decoders written by hand, in pairs.

Before any time is taken the tokens that follow the prompt must be the same, and their
log-probabilities close; who differs or fails has a row without a time. Process CPU on two cores,
where there are two. Peak memory is that of a process of its own, net of its libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.decode.contestants import LLAMA_CPP, ON_JAX, US, Make, makers
from benchmarks.decode.figures import figures
from benchmarks.decode.whole import peaks
from benchmarks.decode.workload import LAUNCH, Work
from benchmarks.harness import (
    Case,
    Checked,
    Contestant,
    Disagreement,
    Row,
    check,
    paired,
    progress,
    row_of,
    without,
)
from benchmarks.pairs import interleaved
from benchmarks.parts import named
from benchmarks.worker import in_worker
from recurra.errors import RecurraError

PARTS = ("tokens", "memory", "figures")
QUICK = (Work(1, 1024), Work(4, 1024), Work(4, 4096))
FULL = (
    *QUICK,
    *(Work(B, T) for T in (4096, 16384) for B in (1, 4) if (B, T) != (4, 4096)),
    *(Work(B, T, 256) for T in (4096, 16384) for B in (1, 4)),
    Work(16, 16384, 256),
)
FEW = 4  # rows: of more, only prompts of decoders in JAX fit into memory
PAIRS, QUICK_PAIRS = 20, 6

MEMORY = (Work(4, 4096), Work(4, 4096, 256))
QUICK_MEMORY = (Work(1, 1024),)


def suite(quick: bool = False, out: Path | None = None, only: str | None = None) -> list[Row]:
    """Rows of every case, each measured in a process of its own; with `out`, the figures, too.

    `only` names parts, separated by commas.
    """
    threads, parts = min(2, machine.cores()), named("decode", PARTS, only)
    if only is not None and "figures" in parts and out is None:
        raise RecurraError(
            "the figures of the bench decode need a folder", hint="write --only figures --out docs"
        )
    rows: list[Row] = []
    for work in (QUICK if quick else FULL) if "tokens" in parts else ():
        arguments = dict(work=work.json(), quick=quick, threads=threads)
        try:
            rows += [row_of(row) for row in in_worker(measure, arguments, threads=threads)]
        except RecurraError as error:
            progress(f"{work}: {error}")
            rows.append(without(str(work), "token_ms", "all of it", "failed"))
    for work in (QUICK_MEMORY if quick else MEMORY) if "memory" in parts else ():
        rows += peaks(work, threads)
    progress(LLAMA_CPP)
    if out is not None and "figures" in parts:
        figures(out, quick)
    return rows


def measure(work: dict[str, Any], quick: bool, threads: int) -> list[dict[str, Any]]:
    """The rows of one case, taken in this process.

    Who fails, or does not agree with us, has a row that says so, and no time.
    """
    import torch

    from benchmarks.decode import memory

    torch.set_num_threads(threads)
    given = Work(**work)
    case = Case(str(given), "token_ms", threads)
    everyone = {n: make for n, make in makers().items() if given.B <= FEW or n in ON_JAX}
    sound, rows = agreed(given, everyone)
    pairs = QUICK_PAIRS if quick else PAIRS
    room = (given.T - given.prompt) // LAUNCH - 1  # launches until the text is full
    ms = interleaved(
        [one.run for one, _ in sound],
        iterations=LAUNCH,
        rounds=min(pairs, room - 1),
        clock=case.clock,
    )
    for (peer, how), theirs in zip(sound[1:], ms[:, 1:].T, strict=True):
        rows.append(paired(case, peer.name, ms[:, 0], theirs, how))
    return [asdict(row) for row in (*rows, memory.row(given))]


def agreed(
    work: Work, make: Mapping[str, Make]
) -> tuple[list[tuple[Contestant, Checked]], list[Row]]:
    """Who gives our answer, ourselves first; rows of the others, without a time."""
    sound: list[tuple[Contestant, Checked]] = []
    rows: list[Row] = []
    us = make[US](work)
    answer = us.answer()
    sound.append((us, "exact"))
    for name, made in make.items():
        if name == US:
            continue
        try:
            peer = made(work)
            how = check((us, answer), (peer, peer.answer()))
            sound.append((peer, how))
            progress(f"{work}: {name}: checked {how}")
        except Disagreement as error:
            progress(f"{work}: {error}")
            rows.append(without(str(work), "token_ms", name, "differs"))
        except Exception as error:  # of whatever kind a peer raises: the others go on
            progress(f"{work}: {name} fails: {type(error).__name__}: {error}")
            rows.append(without(str(work), "token_ms", name, "failed"))
    return sound, rows
