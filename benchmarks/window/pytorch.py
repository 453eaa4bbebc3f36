"""PyTorch inside and outside of window.concurrent(): what an operator costs more, what two cores
give. Results are compared to the last bit first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import PAIRS, QUICK_PAIRS, Case, Contestant, Row, compare, progress
from benchmarks.pairs import interleaved, learned
from recurra.errors import RecurraError
from recurra.window.torch.concurrent import concurrent
from recurra.window.workloads import TorchWorkload, make

BUDGET_US = 1.0  # of process CPU, over eager, per operator
CALLS = 2000
PROGRAMS = (
    ("randomwire", 1),
    ("nasnet", 1),
    ("condconv", 1),
    ("instanas", 1),
    ("ant", 8192),
    ("randomwire", 8),
    ("nasnet", 8),
)


def operator_rows(quick: bool) -> list[dict[str, Any]]:
    """Interception, check and hand-off of one operator; the least of several rounds."""
    torch.set_num_threads(1)
    xs = [torch.ones(64) for _ in range(16)]
    kinds: dict[str, Callable[[int], torch.Tensor]] = {
        "x + 1": lambda k: xs[k % 16] + 1.0,
        "x.add_(0)": lambda k: xs[k % 16].add_(0.0),
        "x[1:]": lambda k: xs[k % 16][1:],
    }
    rows: list[Row] = []
    with torch.no_grad():
        for name, call in kinds.items():
            more = _over_eager(call, QUICK_PAIRS if quick else PAIRS)
            progress(f"{name}: {more:.2f} µs over eager")
            way = BUDGET_US / more
            case = f"{name}, 64 numbers, 1 thread"
            rows.append(
                Row(
                    case, "over_eager_us", more, "budget", BUDGET_US, way, (way, way), None, "exact"
                )
            )
    return [asdict(row) for row in rows]


def _over_eager(call: Callable[[int], torch.Tensor], rounds: int) -> float:
    def calls() -> float:
        begin = time.process_time()
        for k in range(CALLS):
            call(k)
        return time.process_time() - begin

    expected = [call(k).clone() for k in range(16)]
    eager: list[float] = []
    windowed: list[float] = []
    for _ in range(rounds):
        eager.append(calls())
        with concurrent(1, policy="always"):
            found = [call(k).clone() for k in range(16)]
            windowed.append(calls())
        if not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
            raise RecurraError("an operator gives something else inside window.concurrent()")
    return max((min(windowed) - min(eager)) / CALLS * 1e6, 1e-3)


def program_rows(quick: bool) -> list[dict[str, Any]]:
    """Programs on two cores against eager with one and with two threads; `limit` is the longest
    path of operators and of the program between them, or half of all, if that is longer."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name, batch in PROGRAMS:
        program = make(name, batch=batch)
        eager = _contestant("eager, 1 thread", program, _eager(program, 1))
        ours = _contestant("window", program, _windowed(program))
        ms = interleaved([eager.run], iterations=1, rounds=5, clock="wall").min()
        limit = float(ms) / _bound(program)
        learned(ours.run, 4)
        case = Case(f"{name} batch={batch}", threads=2, clock="wall", limit=limit)
        peers = [eager, _contestant("eager, 2 threads", program, _eager(program, 2))]
        rows += compare(case, ours, peers, pairs=QUICK_PAIRS if quick else PAIRS, iterations=4)
    return [asdict(row) for row in rows]


def _bound(program: TorchWorkload) -> float:
    """How much faster two threads could be, however scheduled, from what was measured in order."""
    found = 0.0
    while not found:
        with torch.no_grad(), concurrent(2) as block:
            for _ in range(4):
                program.run()
        found = block.counts["predicted gain"]
    return found


def _eager(program: TorchWorkload, threads: int) -> Callable[[int], None]:
    def run(count: int) -> None:
        torch.set_num_threads(threads)
        for _ in range(count):
            program.run()
        torch.set_num_threads(1)

    return run


def _windowed(program: TorchWorkload) -> Callable[[int], None]:
    def run(count: int) -> None:
        with torch.no_grad(), concurrent(2):
            for _ in range(count):
                program.run()

    return run


def _contestant(name: str, program: TorchWorkload, run: Callable[[int], None]) -> Contestant:
    def answer() -> dict[str, NDArray[Any]]:
        with torch.no_grad():
            if name != "window":
                found = program.run()
            else:
                with concurrent(2, policy="always"):
                    program.run()
                    found = program.run()
        tensors = found if isinstance(found, list) else [found]
        return {"bits": np.concatenate([t.numpy().view(np.int32).ravel() for t in tensors])}

    return Contestant(name, run, answer)
