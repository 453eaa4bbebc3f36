"""The Torch backend beside PyTorch by hand, rows that the data end, checkpoints: one REINFORCE."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import recurra as rc
from benchmarks.backends import checkpoints
from benchmarks.core.recurra_program import LAUNCH, contestant
from benchmarks.core.workload import SEED
from benchmarks.harness import PAIRS, QUICK_PAIRS, Case, Contestant, Row, compare, row_of
from benchmarks.worker import in_worker

B, T = 512, 250


def on_torch(fuse: bool) -> Contestant:
    """Our program on Torch, its kernels fused or not; the environment is equations as well."""
    from recurra.backends.torch.region import TorchBackend

    return contestant(B, T, backend=TorchBackend(fuse), via=rc.import_jax)


def measure(quick: bool) -> list[dict[str, Any]]:
    """The rows of one process, on one core."""
    from benchmarks.core.peers_torch import compiled, eager

    peers = [eager(B, T, SEED), compiled(B, T, SEED)]
    rounds = QUICK_PAIRS if quick else PAIRS
    case = Case(f"T={T} B={B} torch")
    fused = compare(case, on_torch(True), peers, pairs=rounds, iterations=LAUNCH)
    case = Case(f"T={T} B={B} torch, not fused")
    plain = compare(case, on_torch(False), peers[:1], pairs=rounds, iterations=LAUNCH)
    return [asdict(row) for row in (*fused, *plain)]


def measure_until(quick: bool) -> list[dict[str, Any]]:
    """Rows that the data end, in one of T steps, beside the program that knows where they do."""
    rows: list[Row] = []
    for end in (T, T // 2, T // 5):
        known = replace(contestant(B, end), name="the bound is a number")
        case = Case(f"rows end after {end} of {T} steps, B={B}")
        rounds = QUICK_PAIRS if quick else PAIRS
        found = contestant(B, end, room=T)
        rows += compare(case, found, [known], pairs=rounds, iterations=LAUNCH)
    return [asdict(row) for row in rows]


def suite(quick: bool = False) -> list[Row]:
    """Iteration time on one core, also where the data end rows; what checkpoints cost."""
    rows = in_worker(measure, {"quick": quick}, threads=1)
    rows += in_worker(measure_until, {"quick": quick}, threads=1)
    return [
        row_of(row)
        for row in rows + in_worker(checkpoints.measure, {}, threads=checkpoints.THREADS)
    ]
