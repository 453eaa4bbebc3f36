"""A compiled program's own launches through a window: acting, and the world, beside learning."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

import recurra as rc
from benchmarks.harness import PAIRS, QUICK_PAIRS, Case, Contestant, Row, compare
from benchmarks.pairs import learned
from recurra.runtime.executable import Executable
from recurra.window import Executor

ROWS, STEPS, WIDTH, AHEAD = 512, 24, 128, 4
BACKENDS = ("numpy", "torch")


def compiled_rows(quick: bool, backends: tuple[str, ...] = BACKENDS) -> list[dict[str, Any]]:
    """n-step learning on two cores against the same launches in order, wall time.

    `limit`: what is acted and called hangs together, and two cores share the rest.
    """
    rows: list[Row] = []
    if "torch" in backends:  # one core for each launch, in order or not
        import torch

        torch.set_num_threads(1)
    for backend in backends:
        case = Case(
            f"n-step, launches of {backend}, {ROWS} rows",
            threads=2,
            clock="wall",
            limit=_bound(program(backend)),
        )
        ours, peer = _contestant("window", backend, 2), _contestant("in order", backend, None)
        learned(ours.run, 1, 10.0)
        pairs = QUICK_PAIRS if quick else PAIRS
        rows += compare(case, ours, [peer], pairs=pairs, iterations=1)
    return [asdict(row) for row in rows]


def program(backend: str) -> Executable:
    """A world of one layer, which the host is asked for; a policy that learns to foresee it."""
    rng = np.random.default_rng(0)
    inside = rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5)

    def world(a: np.ndarray) -> np.ndarray:
        return np.tanh(np.tanh(a @ inside) @ inside)

    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, iterations), (t, T)):
        net = rc.nn.MLP([WIDTH, WIDTH, WIDTH], (i,))
        o = rc.like(rc.f32[WIDTH], domain=(b, i, t))
        o[b, i, 0] = rc.uniform((b, i), (WIDTH,))
        a = net(o)
        r = rc.call(world, rc.f32[WIDTH], a, batch=(b,))
        o[b, i, t + 1] = r
        loss = (a - r[b, i, t : rc.min(t + AHEAD, T)].mean(axis=0)).square()
        loss[0:B, i, 0:T].mean().backward()
        rc.optim.Adam(net.params, lr=1e-3).step()
        rc.log(loss=loss[0:B, i, 0:T].mean())
    return ctx.compile({B: ROWS, iterations: 2, T: STEPS}, backend=backend, min_overlapped_ns=0.0)


def _bound(made: Executable) -> float:
    """Milliseconds."""
    regions, taken = made.compiled.program.regions, dict[str, float]()
    with Executor(1, policy="always") as run:
        made.run(window=run)
        run.spans.clear()
        made.run(window=run)
    for span in run.spans:
        taken[span.name] = taken.get(span.name, 0.0) + span.stop - span.start
    calls = taken.keys() - {r.name for r in regions}
    acting = {r.name for r in regions if calls & {*r.held}}  # on what the world answered
    chain = sum(taken[n] for n in calls | acting)
    return 1e3 * max(chain, sum(taken.values()) / 2)


def _contestant(name: str, backend: str, window: int | None) -> Contestant:
    made = program(backend)

    def run(count: int) -> None:
        for _ in range(count):
            made.run(window=window)

    return Contestant(name, run, lambda: made.run(window=window))
