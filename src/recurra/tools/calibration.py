"""The prices of this machine, measured by small programs of our own.

    x[t<T+1][512,64] = ..                    each price is the time of an element, or of a byte,
    x[t+1] = tanh(x[t])                      on one core: the least process CPU time of three runs

What is measured is what a backend makes of an equation, beside what it makes of plain ones. It
takes some seconds. RECURRA_PRICES=prices.json then makes every choice by cost with these prices.
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
from recurra.runtime.offload.tiers import Disk, Filed, HostTier, Slow
from recurra.support import cpu

ROWS, WIDTH, STEPS = 512, 64, 200  # of a value: 128 KiB, which a core's cache holds
POINTS = 20_000  # of a loop of numbers
FEW, SLOW = 10, ("argsort", "pow", "sort")
PLAIN = 4  # operators of a plain step, or of one that nothing fuses
RUNS = 3
FAR, TIMES = 400, 4  # values that no cache holds
POINT, POINTS_MOVED = 4 << 20, 24  # bytes of a point that is moved: more than is flushed at once
LEAST = 1e-3  # ns: no price is nothing, however fast the clock says it is
Equation = Callable[[RecurrentTensor, Index], RecurrentTensor]  # of x[t], and t
OPERATORS: Mapping[str, Equation] = {  # what else a step does keeps x in range, and costs little
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


def measure(backend: str, told: Callable[[str], None] = lambda name: None) -> Prices:
    """The prices of a backend here; `told` hears of each before it is measured."""
    idle = _ns(backend, _plain, _start(ROWS, WIDTH), 2)  # of a run that does next to nothing

    def element(name: str, step: Equation) -> float:
        told(name)
        steps = FEW if name in SLOW else STEPS
        ns = _ns(backend, step, _start(ROWS, WIDTH), steps) - idle
        return max(ns / (steps * ROWS * WIDTH), LEAST)

    plain = element("plain", _plain) / PLAIN
    weights = np.eye(WIDTH, dtype=np.float32)[::-1].copy()
    product = element("product", lambda x, t: x @ constant(weights))
    elements = {name: element(name, step) for name, step in OPERATORS.items()}
    told("fused")
    fused = _ns(backend, _plain, _start(), POINTS) / POINTS / PLAIN
    told("statement")
    statement = _ns(backend, _products, _start(FEW), POINTS) / POINTS / PLAIN
    told("traffic")
    return Prices(
        flops_per_ns=2 * WIDTH / product,
        traffic=max(_traffic(backend), LEAST),
        statement=statement,
        fused=fused,
        plain=plain,
        host=max(_moved("host", told), LEAST),
        disk=max(_moved("disk", told), LEAST),
        elements={**PRICES.elements, **elements, "permutation": 6 * elements["uniform"]},
    )


def _plain(tensor: RecurrentTensor, index: Index) -> RecurrentTensor:
    return abs(tensor - 1.0) * 0.5 + 0.25


def _products(tensor: RecurrentTensor, index: Index) -> RecurrentTensor:
    turned = constant(np.eye(FEW, dtype=np.float32)[::-1].copy())
    for _ in range(PLAIN):
        tensor = turned @ tensor
    return tensor


def _start(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(np.float32)


def _ns(backend: str, step: Equation, start: np.ndarray, steps: int) -> float:
    """A chain of steps."""
    with (ctx := Context(dims="t")) as ((t, T),):
        x = like(Type("f32", start.shape), domain=(t,))
        x[0] = constant(start)
        x[t + 1] = step(x, t)
        output(x=x[T - 1])
    program = _ready(ctx, {"T": steps}, backend)
    return min(_cpu_seconds(program) for _ in range(RUNS))


def _traffic(backend: str) -> float:
    """A byte of layers that are held until the last is there, and read from it to the first.

    Beside it the same work runs which reads the last layer each time, so that none is held: what
    keeping costs is what it costs beside other work.
    """
    kept, last = _layers(backend, kept=True), _layers(backend, kept=False)
    pairs = [(_cpu_seconds(kept), _cpu_seconds(last)) for _ in range(RUNS)]
    more = min(x for x, _ in pairs) - min(y for _, y in pairs)
    return more / (TIMES * FAR * ROWS * WIDTH * 4)


def _moved(tier: str, told: Callable[[str], None]) -> float:
    """A byte moved to where offloaded stores are, or back: the least of some runs, by the clock."""
    told(tier)
    x, backend = np.ones(POINT, np.uint8), backend_of("numpy")
    there: Slow = HostTier(backend)
    if tier == "disk":
        file = Disk("what is moved", POINTS_MOVED, POINT, None)
        there = Filed(backend, file, np.empty_like(x))
    taken: list[float] = []
    for _ in range(RUNS):
        since = time.perf_counter_ns()
        for k in range(POINTS_MOVED):
            there.put(k, x)
        for k in range(POINTS_MOVED):
            there.get(k)
        taken.append(float(time.perf_counter_ns() - since))
    there.close()
    return min(taken) / (2 * POINT * POINTS_MOVED)


def _layers(backend: str, kept: bool) -> Executable:
    start, weights = _start(ROWS, WIDTH), np.eye(WIDTH, dtype=np.float32)
    with (ctx := Context(dims="i t")) as ((i, N), (t, T)):
        x, back = (like(Type("f32", start.shape), domain=(i, t)) for _ in range(2))
        x[0, 0] = constant(start)
        x[i, t + 1] = (x @ constant(weights)).tanh()
        back[i, 0] = x[i, T - 1]
        back[i, t + 1] = back @ constant(weights) * x[i, T - 1 - t if kept else T - 1]
        x[i + 1, 0] = back[i, T - 1]
        output(x=back[N - 1, T - 1])
    return _ready(ctx, {"I": TIMES, "T": FAR}, backend)


def _ready(ctx: Context, sizes: dict[str, int], backend: str) -> Executable:
    """A program in which nothing is compiled any more."""
    program = ctx.compile(sizes, backend=backend, axes=False, given=0)
    program.run()
    return program


def _cpu_seconds(program: Executable) -> float:
    """Process CPU time of a run."""
    since = time.process_time_ns()
    program.run()
    return float(time.process_time_ns() - since)
