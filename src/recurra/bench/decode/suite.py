"""Time per token at the middle of a text, ours beside decoders written by hand, in pairs.

Before any time is taken the tokens that follow the prompt must be the same, and their
log-probabilities close. Process CPU on two cores, where there are two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from recurra.bench import machine
from recurra.bench.core import row_of
from recurra.bench.decode.work import LAUNCH, Work
from recurra.bench.harness import Case, Contestant, Row, compare, progress
from recurra.bench.worker import find, in_worker, name_of

QUICK = (Work(1, 1024), Work(4, 1024), Work(4, 4096))
FULL = (
    *QUICK,
    *(Work(B, T) for T in (4096, 16384) for B in (1, 4) if (B, T) != (4, 4096)),
    *(Work(B, T, 256) for T in (4096, 16384) for B in (1, 4)),
)
PAIRS, QUICK_PAIRS = 20, 6

Make = Callable[[Work], Contestant]


def suite(ours: Make, quick: bool = False) -> list[Row]:
    """Rows of every case; each is measured in a process of its own."""
    threads = min(2, machine.cores())
    rows: list[Row] = []
    for work in QUICK if quick else FULL:
        arguments = dict(ours=name_of(ours), work=work.json(), quick=quick, threads=threads)
        rows += [row_of(row) for row in in_worker(measure, arguments, threads=threads)]
    return rows


def peers(work: Work) -> list[Contestant]:
    """Those written by hand, in JAX and in PyTorch, and transformers where it is installed."""
    from recurra.bench.decode.peers_jax import LAYOUTS, padded
    from recurra.bench.decode.peers_torch import eager

    by_hand = [*(padded(work, x) for x in LAYOUTS), *(eager(work, x) for x in (False, True))]
    if find_spec("transformers") is None:
        progress("transformers is not installed: its rows are left out")
        return by_hand
    from recurra.bench.decode.peers_transformers import CACHES, transformers_model

    return [*by_hand, *(transformers_model(work, x) for x in CACHES)]


def measure(ours: str, work: dict[str, Any], quick: bool, threads: int) -> list[dict[str, Any]]:
    """The rows of one case, taken in this process."""
    import torch

    from recurra.bench.decode import memory

    torch.set_num_threads(threads)
    given = Work(**work)
    case = Case(str(given), "token_ms", threads)
    pairs = QUICK_PAIRS if quick else PAIRS
    room = (given.T - given.prompt) // LAUNCH - 1  # launches until the text is full
    rows = compare(
        case, find(ours)(given), peers(given), pairs=min(pairs, room - 1), iterations=LAUNCH
    )
    return [asdict(row) for row in (*rows, memory.row(given))]
