"""REINFORCE written by hand in PyTorch: as it is usually written, and as our schedule compiled.

Both learn from the worked example's CartPole and parameters. Timed, they draw by torch.rand, the
cheapest way; their answer is computed from our draws, stored in a table [iterations, T, B].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.core.cartpole import (
    ANGLE_LIMIT,
    CART_AND_POLE,
    FORCE,
    GRAVITY,
    HALF_LENGTH,
    POLE,
    TAU,
    X_LIMIT,
)
from benchmarks.core.workload import BETA1, BETA2, CHECKED, EPS, GAMMA, LR, RESET, SAMPLE, initial
from benchmarks.harness import Contestant
from recurra.ops.random import uniform

Tensor = torch.Tensor
Draw = Callable[[int, int], Tensor]  # (iteration, step; -1 for the reset) -> [B] or [B, 4]
Parameters = dict[str, Tensor]


def draws(B: int, seed: int | None) -> Draw:
    """By torch.rand, or the draws of our program from its seed."""
    if seed is None:
        return lambda i, t: torch.rand(B, 4) if t < 0 else torch.rand(B)
    rows = np.arange(B)

    def stored(index: int, step: int) -> Tensor:
        if step < 0:
            u = uniform(np, seed, RESET, [index], rows[:, None], np.arange(4), (B, 4), "f32")
        else:
            u = uniform(np, seed, SAMPLE, [index], rows, step, (B,), "f32")
        return torch.from_numpy(u)

    return stored


def env_step(o: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Next observations [B, 4] and whether each episode ended [B]."""
    x, dx, angle, spin = o.unbind(-1)
    sin, cos = angle.sin(), angle.cos()
    push = torch.where(a == 1, FORCE, -FORCE)
    force = (push + POLE * HALF_LENGTH * spin * spin * sin) / CART_AND_POLE
    inertia = HALF_LENGTH * (4.0 / 3.0 - POLE * cos * cos / CART_AND_POLE)
    spin_up = (GRAVITY * sin - cos * force) / inertia
    pull = force - POLE * HALF_LENGTH * spin_up * cos / CART_AND_POLE
    x, angle = x + TAU * dx, angle + TAU * spin
    o = torch.stack([x, dx + TAU * pull, angle, spin + TAU * spin_up], -1)
    return o, (x.abs() > X_LIMIT) | (angle.abs() > float(ANGLE_LIMIT))


def parameters(seed: int) -> Parameters:
    return {k: torch.from_numpy(x.copy()) for k, x in initial(seed).items()}


def logits(th: Mapping[str, Tensor], o: Tensor) -> Tensor:
    """[.., 4] -> [.., 2]"""
    h = torch.tanh(o @ th["W1"] + th["b1"])
    return torch.tanh(h @ th["W2"] + th["b2"]) @ th["W3"] + th["b3"]


def act(th: Mapping[str, Tensor], o: Tensor, alive: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """Actions [B], next observations [B, 4], who is alive then [B]."""
    a = (u > torch.softmax(logits(th, o), -1)[:, 0]).long()
    moved, done = env_step(o, a)
    return a, torch.where((alive > 0)[:, None], moved, o), torch.where(done, 0.0, alive)


class Buffers:
    """What one iteration acts into: o [T, B, 4], a and r and g [T, B]."""

    def __init__(self, B: int, T: int):
        self.o, self.a = torch.empty(T, B, 4), torch.empty(T, B, dtype=torch.int64)
        self.r, self.g = torch.empty(T, B), torch.empty(T, B)


def advantages(buffers: Buffers) -> Tensor:
    """Returns normalized over the live steps, [T, B]."""
    n = buffers.r.sum()
    mean = (buffers.r * buffers.g).sum() / n
    return (buffers.g - mean) / (((buffers.r * (buffers.g - mean) ** 2).sum() / n).sqrt() + EPS)


def rollout(
    buffers: Buffers, th: Mapping[str, Tensor], index: int, draw: Draw, step: Any, back: Any
) -> Tensor:
    """Fills the buffers of iteration i; the mean episode length."""
    T, B = buffers.r.shape
    o, alive = 0.1 * draw(index, -1) - 0.05, torch.ones(B)
    for t in range(T):
        buffers.o[t], buffers.r[t] = o, alive
        buffers.a[t], o, alive = step(th, o, alive, draw(index, t))
    later = torch.zeros(B)
    for t in reversed(range(T)):
        later = back(buffers.r[t], later)
        buffers.g[t] = later
    return buffers.r.sum(0).mean()


def discount(r: Tensor, later: Tensor) -> Tensor:
    return r + GAMMA * later


# ---- as it is usually written


def eager(B: int, T: int, seed: int) -> Contestant:
    """A module, autograd, torch.optim.Adam."""

    def start(draw: Draw) -> Callable[[int], tuple[Tensor, Parameters]]:
        th = {k: x.requires_grad_() for k, x in parameters(seed).items()}
        adam = torch.optim.Adam(th.values(), lr=LR, betas=(BETA1, BETA2), eps=EPS)
        s = Buffers(B, T)

        def iteration(index: int) -> tuple[Tensor, Parameters]:
            with torch.no_grad():
                length = rollout(s, th, index, draw, act, discount)
                weights = s.r * advantages(s)
            chosen = torch.log_softmax(logits(th, s.o), -1).gather(-1, s.a[..., None])[..., 0]
            adam.zero_grad()
            (-weights * chosen).mean().backward()
            adam.step()
            return length, {k: x.grad for k, x in th.items() if x.grad is not None}

        return iteration

    return contestant("eager PyTorch", B, T, seed, start)


# ---- our schedule, compiled


def learn(
    th: Mapping[str, Tensor], o: Tensor, a: Tensor, w: Tensor, scale: float
) -> tuple[Tensor, ...]:
    """The gradient of a tile of rows [N, ..], written out."""
    h1 = torch.tanh(o @ th["W1"] + th["b1"])
    h2 = torch.tanh(h1 @ th["W2"] + th["b2"])
    p = torch.softmax(h2 @ th["W3"] + th["b3"], -1)
    hot = torch.stack([a == 0, a == 1], -1).to(p.dtype)
    d3 = (p - hot) * (w * scale)[:, None]
    d2 = d3 @ th["W3"].T * (1 - h2 * h2)
    d1 = d2 @ th["W2"].T * (1 - h1 * h1)
    return o.T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0), h2.T @ d3, d3.sum(0)


def update(
    th: Parameters, parameters: Parameters, v: Parameters, d: Parameters, n: Tensor
) -> tuple[Parameters, Parameters, Parameters]:
    """One step of Adam; n counts from 1."""
    parameters = {k: BETA1 * parameters[k] + (1 - BETA1) * g for k, g in d.items()}
    v = {k: BETA2 * v[k] + (1 - BETA2) * g * g for k, g in d.items()}
    c1, c2 = 1 - BETA1**n, 1 - BETA2**n
    new = {k: x - LR * (parameters[k] / c1) / ((v[k] / c2).sqrt() + EPS) for k, x in th.items()}
    return new, parameters, v


NAMES = ("W1", "b1", "W2", "b2", "W3", "b3")


def compiled(B: int, T: int, seed: int, rows: int = 4096) -> Contestant:
    """torch.compile of each step of the schedule; gradients in tiles of about `rows` rows."""
    kernels: list[Any] = [
        torch.compile(f, fullgraph=True, dynamic=False) for f in (act, discount, learn, update)
    ]
    step, back, tile, adam = kernels
    Z = max(z for z in range(1, T + 1) if T % z == 0 and (z == 1 or z * B <= rows))

    def start(draw: Draw) -> Callable[[int], tuple[Tensor, Parameters]]:
        th, s = parameters(seed), Buffers(B, T)
        m = {k: torch.zeros_like(x) for k, x in th.items()}
        v = {k: torch.zeros_like(x) for k, x in th.items()}

        def iteration(index: int) -> tuple[Tensor, Parameters]:
            nonlocal th, m, v
            with torch.inference_mode():
                length = rollout(s, th, index, draw, step, back)
                w = s.r * advantages(s)
                total = {k: torch.zeros_like(x) for k, x in th.items()}
                for t in range(0, T, Z):
                    o, a = s.o[t : t + Z].view(-1, 4), s.a[t : t + Z].view(-1)
                    part = tile(th, o, a, w[t : t + Z].view(-1), 1 / (B * T))
                    for k, g in zip(NAMES, part, strict=True):
                        total[k] += g
                th, m, v = adam(th, m, v, total, torch.tensor(index + 1.0))
            return length, total

        return iteration

    return contestant("torch.compile by hand", B, T, seed, start)


def contestant(
    name: str,
    B: int,
    T: int,
    seed: int,
    start: Callable[[Draw], Callable[[int], tuple[Tensor, Parameters]]],
) -> Contestant:
    """Runs on from iteration to iteration; answers from our draws."""
    going: list[Any] = []

    def run(index: int) -> NDArray[Any]:
        if not going:
            going.extend([start(draws(B, None)), 0])
        iteration, first = going
        going[1] = first + index
        return np.array([float(iteration(i)[0]) for i in range(first, first + index)])

    def answer() -> Mapping[str, NDArray[Any]]:
        iteration = start(draws(B, seed))
        found = [(float(n), {k: x.numpy().copy() for k, x in d.items()})
                 for n, d in (iteration(i) for i in range(CHECKED))]  # fmt: skip
        first = {f"d_{k}": x for k, x in found[0][1].items()}
        work = {
            "env_steps": B * T,
            "parameters": sum(math.prod(x.shape) for x in first.values()),
            "iterations": CHECKED,
        }
        lengths = np.array([n for n, _ in found], np.float32)
        return {"length": lengths, **first, **{k: np.array(n) for k, n in work.items()}}

    return Contestant(name, run, answer)
