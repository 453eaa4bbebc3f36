"""The Torch backend beside PyTorch written by hand: the same REINFORCE, the same CartPole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

import recurra as rc
from recurra.bench import checkpoints
from recurra.bench.cartpole import (
    ANGLE_LIMIT,
    CART_AND_POLE,
    FORCE,
    GRAVITY,
    HALF_LENGTH,
    POLE,
    TAU,
    X_LIMIT,
)
from recurra.bench.core import row_of
from recurra.bench.harness import PAIRS, QUICK_PAIRS, Case, Contestant, Row, compare
from recurra.bench.reinforce import CHECKED, GAMMA, LR, WIDTHS, initial
from recurra.bench.worker import in_worker
from recurra.executable import Executable
from recurra.lang.nn.modules import Linear, Policy, Sequential, Tanh

B, T, SEED, LAUNCH = 512, 250, 7, 8


def env_step(o: Any, a: Any) -> tuple[Any, Any]:
    """CartPole as equations: the next observation [4], and whether the episode ended."""
    x, dx, angle, spin = (o.index(k) for k in range(4))
    sin, cos = angle.sin(), angle.cos()
    push = rc.where(a == 1, FORCE, -FORCE)
    force = (push + POLE * HALF_LENGTH * spin * spin * sin) / CART_AND_POLE
    inertia = HALF_LENGTH * (4.0 / 3.0 - POLE * cos * cos / CART_AND_POLE)
    spin_up = (GRAVITY * sin - cos * force) / inertia
    pull = force - POLE * HALF_LENGTH * spin_up * cos / CART_AND_POLE
    x, angle = x + TAU * dx, angle + TAU * spin
    moved = rc.stack([x, dx + TAU * pull, angle, spin + TAU * spin_up])
    return moved, (abs(x) > X_LIMIT) | (abs(angle) > float(ANGLE_LIMIT))


def program(iterations: int, gradients: bool, backend: Any, **options: Any) -> Executable:
    """REINFORCE with the peers' parameters; every statement is an equation of ours."""
    start = initial(SEED)
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B_), (i, I_), (t, T_)):
        layers: list[Any] = []
        for k, (inputs, outputs) in enumerate(WIDTHS, 1):
            weight = rc.constant(start[f"W{k}"])
            layers += [Linear(inputs, outputs, (i,), init=lambda _, w=weight: w), Tanh()]
        dnn = Policy(Sequential(*layers[:-1]))
        o = rc.like(rc.f32[4], domain=(b, i, t))
        alive = rc.like(rc.f32[()], domain=(b, i, t))
        o[b, i, 0] = rc.uniform((b, i), (4,)) * 0.1 - 0.05
        alive[b, i, 0] = 1.0
        a = dnn(o).sample()
        moved, done = env_step(o.detach(), a)
        o[b, i, t + 1] = rc.where(alive > 0.0, moved, o).detach()
        alive[b, i, t + 1] = rc.where(done, 0.0, alive)
        r = alive.detach()
        g = r[b, i, t:T_].discounted_sum(GAMMA)
        adv = rc.rl.normalise(g, over=(b, t), where=r > 0)
        loss = -r * adv * dnn(o).log_prob(a)
        loss[0:B_, i, 0:T_].mean().backward()
        rc.optim.Adam(dnn.params, lr=LR).step()
        rc.log(length=r[0:B_, i, 0:T_].sum(axis=1).mean())
        if gradients:
            names = [f"d_{c}{k}" for k in range(1, len(WIDTHS) + 1) for c in "Wb"]
            grads: list[Any] = [p.grad for p in dnn.params]
            rc.output(**dict(zip(names, grads, strict=True)))
    bounds = {B_: B, I_: iterations, T_: T}
    return ctx.compile(bounds, chunk=LAUNCH, backend=backend, **options)


def ours(name: str, fuse: bool) -> Contestant:
    """Our program on Torch, its kernels fused or not."""
    from recurra.backend.torch.region import TorchBackend

    steps: Any = None

    def run(k: int) -> NDArray[Any]:
        nonlocal steps
        if steps is None:
            steps = program(10_000, False, TorchBackend(fuse)).execution.steps(SEED)
        return np.concatenate(
            [next(iter(next(steps).outputs.values())) for _ in range(k // LAUNCH)]
        )

    def answer() -> Mapping[str, NDArray[Any]]:
        result = program(CHECKED, True, TorchBackend(fuse)).run(seed=SEED)
        first = {k: x[0] for k, x in result.items() if k != "length"}
        parameters = sum(x.size for x in first.values())
        work = {"env_steps": B * T, "parameters": parameters, "iterations": CHECKED}
        return {"length": result["length"], **first, **{k: np.array(n) for k, n in work.items()}}

    return Contestant(name, run, answer)


def measure(quick: bool) -> list[dict[str, Any]]:
    """The rows of one process, on one core."""
    from recurra.bench.reinforce_torch import compiled, eager

    peers = [eager(B, T, SEED), compiled(B, T, SEED)]
    rounds = QUICK_PAIRS if quick else PAIRS
    case = Case(f"T={T} B={B} torch")
    fused = compare(case, ours("recurra", True), peers, pairs=rounds, iterations=LAUNCH)
    case = Case(f"T={T} B={B} torch, not fused")
    plain = compare(case, ours("recurra", False), peers[:1], pairs=rounds, iterations=LAUNCH)
    return [asdict(row) for row in (*fused, *plain)]


def suite(ours: Any = None, quick: bool = False) -> list[Row]:
    """Iteration time on one core; what checkpoints cost."""
    rows = in_worker(measure, {"quick": quick}, threads=1)
    return [row_of(row) for row in rows + in_worker(checkpoints.measure, {}, threads=2)]
