"""Measure the prices of this machine by small programs.

    x[t<T+1][512,64] = ..                    each price is the time of an element, or of a byte,
    x[t+1] = tanh(x[t])                      on one core: the least process CPU time of three runs

It measures the code of a backend for an equation, less that of a plain equation, and takes some
seconds. With RECURRA_PRICES=prices.json every choice by cost uses these prices.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import arg

from recurra.backends.registry import backend_of
from recurra.cost import prices as priced
from recurra.cost.prices import PRICES, Prices
from recurra.frontend.context import Context
from recurra.frontend.dims import Index
from recurra.frontend.functions import constant, like, output, uniform, where
from recurra.frontend.tensor import RecurrentTensor
from recurra.ir.types import Type
from recurra.runtime.executable import Executable
from recurra.runtime.offload.tiers import Disk, DiskTier, HostTier, SlowTier
from recurra.support import cpu

ROWS, WIDTH, STEPS = 512, 64, 200  # a value of 128 KiB, which fits in a core's cache
POINTS = 20_000  # steps of a loop over small values
FEW, SLOW = 10, ("argsort", "pow", "sort")  # the number of steps of slow operators
PLAIN = 4  # operators of a plain step, or of a step without fusion
RUNS = 3
FAR, TIMES = 400, 4  # points and iterations of values that exceed the caches
POINT, POINTS_MOVED = 4 << 20, 24  # bytes of a moved point: more than is flushed at once
LEAST = 1e-3  # ns: the smallest price, whatever the clock says
Equation = Callable[[RecurrentTensor, Index], RecurrentTensor]  # of x[t], and t
OPERATORS: Mapping[str, Equation] = {  # the other, cheap operators keep x in range
    "tanh": lambda x, t: x.tanh() + 1.0,
    "exp": lambda x, t: (0.0 - x).exp(),
    "log": lambda x, t: (x + 1.0).log(),
    "sin": lambda x, t: x.sin() + 1.0,
    "cos": lambda x, t: x.cos() + 0.1,
    "sigmoid": lambda x, t: x.sigmoid() + 0.0001,
    "pow": lambda x, t: (x + 0.5) ** 0.3,
    "softmax": lambda x, t: x.softmax() + 0.0001,
    "log_softmax": lambda x, t: x.log_softmax() + 0.0001,
    "cumsum": lambda x, t: x.cumsum(1) * 0.02,
    "uniform": lambda x, t: abs(x - uniform((t,), (ROWS, WIDTH))),
    "take": lambda x, t: x.take(constant(np.arange(ROWS, dtype=np.int32)[::-1].copy())),
    "where": lambda x, t: where(x < 0.5, x + 0.3, x - 0.3),
    "sort": lambda x, t: x.sort(1) * 0.9,
    "argsort": lambda x, t: x.argsort(1).cast("f32") * 0.01,
    "topk": lambda x, t: x + 1e-6 * x.topk(4)[1].max(),
}


@dataclass(frozen=True)
class Calibrate:
    """Measure what work costs on this machine, for choices that are made by cost.

    Example: recurra calibrate --out prices.json; RECURRA_PRICES=prices.json recurra train ppo
    """

    backend: str = "jax"
    """jax, numpy or torch: each has prices of its own, beside the others' in the file."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("prices.json")
    """Where they are written."""
    json: bool = False
    """Print the prices as one JSON object."""

    def __call__(self) -> int:
        from rich.console import Console

        backend_of(self.backend)
        machine = cpu.name()
        known = priced.read(self.out, machine) if self.out.exists() else {}
        with Console(stderr=True).status("") as shown:
            found = measure(self.backend, shown.update)
        priced.write(self.out, machine, {**known, self.backend: found})
        if self.json:
            print(json.dumps({"prices": str(self.out), "backend": self.backend, **asdict(found)}))
            return 0
        for row in found.rows:
            print(f"{row['price']:<14} {row['value']:>9}")
        print(f"written to {self.out}; use them: RECURRA_PRICES={self.out}")
        return 0


def measure(backend: str, progress: Callable[[str], None] = lambda name: None) -> Prices:
    """Measure the prices of a backend; `progress` gets the name of each beforehand."""
    idle = _ns(backend, _plain, _start(ROWS, WIDTH), 2)  # the time of an almost empty run

    def element(name: str, step: Equation) -> float:
        progress(name)
        steps = FEW if name in SLOW else STEPS
        ns = _ns(backend, step, _start(ROWS, WIDTH), steps) - idle
        return max(ns / (steps * ROWS * WIDTH), LEAST)

    plain = element("plain", _plain) / PLAIN
    weights = np.eye(WIDTH, dtype=np.float32)[::-1].copy()
    product = element("product", lambda x, t: x @ constant(weights))
    elements = {name: element(name, step) for name, step in OPERATORS.items()}
    progress("fused")
    fused = _ns(backend, _plain, _start(), POINTS) / POINTS / PLAIN
    progress("statement")
    statement = _ns(backend, _products, _start(FEW), POINTS) / POINTS / PLAIN
    progress("traffic")
    return Prices(
        flops_per_ns=2 * WIDTH / product,
        traffic=max(_traffic_ns(backend), LEAST),
        statement=statement,
        fused=fused,
        plain=plain,
        host=max(_transfer_ns("host", progress), LEAST),
        disk=max(_transfer_ns("disk", progress), LEAST),
        elements={**PRICES.elements, **elements, "permutation": 6 * elements["uniform"]},
    )


def _plain(tensor: RecurrentTensor, index: Index) -> RecurrentTensor:
    return abs(tensor - 1.0) * 0.5 + 0.25


def _products(tensor: RecurrentTensor, index: Index) -> RecurrentTensor:
    permutation = constant(np.eye(FEW, dtype=np.float32)[::-1].copy())
    for _ in range(PLAIN):
        tensor = permutation @ tensor
    return tensor


def _start(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(np.float32)


def _ns(backend: str, step: Equation, start: np.ndarray, steps: int) -> float:
    """Return the CPU time of a chain of steps, in nanoseconds."""
    with (ctx := Context(dims="t")) as ((t, T),):
        x = like(Type("f32", start.shape), domain=(t,))
        x[0] = constant(start)
        x[t + 1] = step(x, t)
        output(x=x[T - 1])
    program = _warm_program(ctx, {"T": steps}, backend)
    return min(_cpu_ns(program) for _ in range(RUNS))


def _traffic_ns(backend: str) -> float:
    """Return the nanoseconds per byte of layers that are stored, then read from last to first.

    The same work that always reads the last layer, so that none is stored, is subtracted.
    """
    stored, last = _layers(backend, stored=True), _layers(backend, stored=False)
    pairs = [(_cpu_ns(stored), _cpu_ns(last)) for _ in range(RUNS)]
    more = min(x for x, _ in pairs) - min(y for _, y in pairs)
    return more / (TIMES * FAR * ROWS * WIDTH * 4)


def _transfer_ns(tier: str, progress: Callable[[str], None]) -> float:
    """Return the nanoseconds per byte of a move to an offloading tier, or back, by the clock."""
    progress(tier)
    x, backend = np.ones(POINT, np.uint8), backend_of("numpy")
    slow: SlowTier = HostTier(backend)
    if tier == "disk":
        file = Disk("what is moved", POINTS_MOVED, POINT, None)
        slow = DiskTier(backend, file, np.empty_like(x))
    durations: list[float] = []
    for _ in range(RUNS):
        since = time.perf_counter_ns()
        for k in range(POINTS_MOVED):
            slow.put(k, x)
        for k in range(POINTS_MOVED):
            slow.get(k)
        durations.append(float(time.perf_counter_ns() - since))
    slow.close()
    return min(durations) / (2 * POINT * POINTS_MOVED)


def _layers(backend: str, stored: bool) -> Executable:
    start, weights = _start(ROWS, WIDTH), np.eye(WIDTH, dtype=np.float32)
    with (ctx := Context(dims="i t")) as ((i, N), (t, T)):
        x, back = (like(Type("f32", start.shape), domain=(i, t)) for _ in range(2))
        x[0, 0] = constant(start)
        x[i, t + 1] = (x @ constant(weights)).tanh()
        back[i, 0] = x[i, T - 1]
        back[i, t + 1] = back @ constant(weights) * x[i, T - 1 - t if stored else T - 1]
        x[i + 1, 0] = back[i, T - 1]
        output(x=back[N - 1, T - 1])
    return _warm_program(ctx, {"I": TIMES, "T": FAR}, backend)


def _warm_program(ctx: Context, sizes: dict[str, int], backend: str) -> Executable:
    """Compile a program, and run it once so that later runs compile nothing."""
    program = ctx.compile(sizes, backend=backend, vectorized=False, min_peeled_points=0)
    program.run()
    return program


def _cpu_ns(program: Executable) -> float:
    """Return the process CPU time of a run, in nanoseconds."""
    since = time.process_time_ns()
    program.run()
    return float(time.process_time_ns() - since)
