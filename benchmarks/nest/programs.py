"""Whole programs with kernels of ours for their contractions, beside the same programs without.

Both are compiled from the same equations; each contraction is taken or left by what it measures by
itself, so a ratio near 1 says that the backend's own was as good, or that the rest takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import recurra as rc
from benchmarks.core.recurra_program import LAUNCH, contestant
from benchmarks.core.workload import SEED
from benchmarks.harness import PAIRS, QUICK_PAIRS, Case, Contestant, Row, compare, progress
from recurra.backends.registry import backend_of
from recurra.frontend.nn.modules import Linear, ReLU, Sequential
from recurra.runtime.executable import Executable

BACKENDS = ("jax", "torch")
CHECKED = 2 * LAUNCH  # iterations whose losses are compared

Make = Callable[[Any], Contestant]


def programs(quick: bool) -> list[dict[str, Any]]:
    """A row per program and backend: `ours` is with kernels, its peer the backend alone."""
    B, T = (64, 50) if quick else (512, 250)
    width = 256 if quick else 512
    made: Mapping[str, Callable[[str], Make]] = {
        f"REINFORCE T={T} B={B}": lambda name: partial(_reinforce, B, T, name),
        f"MLP of 3 layers, {width} wide, 256 rows": lambda name: partial(_mlp, width, 256),
        "RNN back through 32 steps, 128 wide, 64 rows": lambda name: partial(_rnn, 128, 64, 32),
    }
    rows: list[Row] = []
    for case, make in made.items():
        for name in BACKENDS:
            rows += _beside(case, name, make(name), quick)
    return [asdict(row) for row in rows]


def _beside(case: str, name: str, make: Make, quick: bool) -> list[Row]:
    tuned: Any = backend_of(f"{name}+nest")
    us = replace(make(tuned), name=f"{name}+nest")
    found = compare(
        Case(case),
        us,
        [replace(make(backend_of(name)), name=name)],
        pairs=QUICK_PAIRS if quick else PAIRS,
        iterations=LAUNCH,
    )
    choices = {row["contraction"] + row["sizes"]: row for row in tuned.contraction_rows}
    taken = sum(row["used"] for row in choices.values())
    for row in choices.values():
        progress(f"  {row}")
    kernels = f"{case}, {taken} of {len(choices)} contractions by kernels 1T"
    return [replace(row, case=kernels) for row in found]


def _reinforce(B: int, T: int, name: str, backend: Any) -> Contestant:
    """Torch has the environment as equations, too."""
    return contestant(B, T, backend=backend, via=rc.import_jax if name == "torch" else rc.jax_fn)


def _contestant(program: Callable[[int], Executable]) -> Contestant:
    steps: Any = None

    def run(index: int) -> Any:
        nonlocal steps
        if steps is None:
            steps = program(10_000).execution.steps(SEED)
        return [next(iter(next(steps).outputs.values())) for _ in range(index // LAUNCH)]

    def answer() -> Mapping[str, NDArray[Any]]:
        return {"loss": np.asarray(program(CHECKED).run(seed=SEED)["loss"])}

    return Contestant("recurra", run, answer)


def _mlp(width: int, rows: int, backend: Any) -> Contestant:
    """Regression by stochastic gradient descent: nearly all of it is matrix products."""

    def program(iterations: int) -> Executable:
        ctx = rc.Context(num_dims=1)
        with ctx as ((i, I_),):
            x = rc.normal((i,), (rows, width))
            layers: list[Any] = []
            for _ in range(3):
                layers += [Linear(width, width, (i,)), ReLU()]
            network = Sequential(*layers[:-1])
            loss = (network(x) - x.tanh()).square().mean()
            loss.backward()
            rc.optim.SGD(network.params, lr=0.1).step()
            rc.log(loss=loss)
        return ctx.compile({I_: iterations}, launch_steps=LAUNCH, backend=backend)

    return _contestant(program)


def _rnn(width: int, rows: int, length: int, backend: Any) -> Contestant:
    """A recurrent network, with gradients through all of its steps."""

    def program(iterations: int) -> Executable:
        ctx = rc.Context(num_dims=3)
        with ctx as ((b, B), (i, I_), (t, T)):
            x = rc.normal((b, i, t), (width,))
            V = rc.nn.Parameter(
                rc.nn.initializers.orthogonal(0.9)((width, width)), domain=(i,), name="V"
            )
            h = rc.like(rc.f32[width], domain=(b, i, t))
            h[b, i, 0] = x[b, i, 0]
            h[b, i, t] = (x + h[b, i, t - 1] @ V).tanh()
            loss = (h - x).square().mean()[0:B, i, 0:T].mean()
            loss.backward()
            rc.optim.SGD([V], lr=0.1).step()
            rc.log(loss=loss)
        bounds = {B: rows, I_: iterations, T: length}
        return ctx.compile(bounds, launch_steps=LAUNCH, backend=backend)

    return _contestant(program)
