"""The compiler's own suite: one REINFORCE program, ours beside the versions written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks.core import budgets
from benchmarks.core.peers_jax import (
    batch_first,
    batch_last,
    python_loop,
    scan_grad,
    scan_grad_jax_random,
)
from benchmarks.core.recurra_program import contestant
from benchmarks.core.workload import SEED
from benchmarks.harness import PAIRS, QUICK_PAIRS, Case, Contestant, Row, compare, row_of
from benchmarks.worker import find, in_worker, name_of

SIZES = ((512, 250), (64, 250))  # (B, T)
TILE = 512  # columns that fill one core's matrix product
PEERS = (batch_first, batch_last, scan_grad, scan_grad_jax_random, python_loop)

Make = Callable[[int, int], Contestant]


def contestants(B: int, T: int, seed: int = SEED) -> list[Contestant]:
    """The hand-written peers; a small batch also with tiles of about 512 columns."""
    Zt = max(z for z in range(1, T + 1) if T % z == 0 and (z == 1 or z * B <= TILE))
    tiled = [batch_last(B, T, seed, Zt=Zt)] if Zt > 1 else []
    return [make(B, T, seed) for make in PEERS] + tiled


def suite(quick: bool = False, ours: Make = contestant) -> list[Row]:
    """Iteration time on one core; `ours(B, T)` is called, by its name, in another process.

    Its answer needs the peers' keys: `length` of the first iterations, the first gradient `d_W1` ..
    `d_b3`, and the counts `env_steps` (of one iteration), `parameters`, `iterations`.
    """
    rows: list[Row] = []
    for B, T in SIZES:
        arguments = dict(ours=name_of(ours), B=B, T=T, quick=quick)
        rows += [row_of(row) for row in in_worker(measure, arguments, threads=1)]
    return rows + [row_of(r) for r in budgets.suite()]


def measure(ours: str, B: int, T: int, quick: bool) -> list[dict[str, Any]]:
    """The rows of one size, taken in this process."""
    case = Case(f"T={T} B={B}")
    pairs, iterations = (QUICK_PAIRS, 8) if quick else (PAIRS, 8)
    program = find(ours)(B, T)
    rows = compare(case, program, contestants(B, T), pairs=pairs, iterations=iterations)
    return [asdict(row) for row in rows]
