"""Random programs that do the same to a state and to its neighbors, before, after and as made.

The pass predictive_commoning reads most of them at another point; gradients go through some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import numpy as np
import pytest

import recurra as rc
from everywhere import expect_near
from fuzzing import each, seeded_at_length
from recurra.frontend.context import Context
from recurra.frontend.tensor import RecurrentTensor as Tensor

Work = Callable[[Tensor], Tensor]
Kind = Callable[[Tensor, Tensor, Work, Work], Tensor]


class Writer:
    """A program over rows b and points t: each tensor is made of one before and its neighbors."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        rows, points = self.random.choice([1, 2, 3]), self.random.choice([1, 2, 3, 5, 6])
        rng = np.random.default_rng(seed)
        shapes = {"o": (rows, points, 3), "w": (3, 3), "u": (rows, 3, 3)}
        self.inputs = {k: rng.standard_normal(s).astype("f4") for k, s in shapes.items()}
        self.ctx = Context(dims="b t")
        with self.ctx as ((self.b, B), (self.t, self.T)):
            self.bounds = {B: rows, self.T: points}
            o = rc.input(rc.f32[3], (self.b, self.t), name="o")
            w, u = rc.input(rc.f32[3, 3], (), name="w"), rc.input(rc.f32[3, 3], (self.b,), name="u")
            self.made = [o]
            works: list[Work] = [
                lambda x: x.softmax(axis=0),
                lambda x: (w @ x).tanh(),
                lambda x: u @ x,
                lambda x: x.sum().expand(3) * 0.3,
                lambda x: (w @ x).softmax(axis=0).square(),
            ]
            kinds: list[Kind] = [self.after, self.before, self.apart, self.forward, self.backward]
            for _ in range(self.random.randint(2, 5)):
                p, f = self.pick(), self.random.choice(works)
                q = p if self.random.random() < 0.7 else self.pick()
                g = f if self.random.random() < 0.7 else self.random.choice(works)
                self.made.append(self.random.choice(kinds)(p, q, f, g) * 1.0)
            outputs = {f"y{k}": y for k, y in enumerate(self.made[1:])}
            if self.random.random() < 0.5:
                self.made[-1][0:B, 0 : self.T].square().sum().backward(wrt=[o])
                assert o.grad is not None
                outputs["slope"] = o.grad
            rc.output(**outputs)

    def pick(self) -> Tensor:
        back = int(self.random.random() ** 2 * 3)
        return self.made[-1 - min(back, len(self.made) - 1)]

    def new(self) -> Tensor:
        return rc.like(rc.f32[3], (self.b, self.t))

    def after(self, p: Tensor, q: Tensor, f: Work, g: Work) -> Tensor:
        y, b, t = self.new(), self.b, self.t
        y[b, self.T - 1] = f(p)
        y[b, t] = f(p[b, t + 1]) - g(q)
        return y

    def before(self, p: Tensor, q: Tensor, f: Work, g: Work) -> Tensor:
        y, b, t = self.new(), self.b, self.t
        y[b, t < 2] = g(q)
        y[b, t] = f(p[b, t - 2]) * 0.5 + g(q[b, t - 1])
        return y

    def apart(self, p: Tensor, q: Tensor, f: Work, g: Work) -> Tensor:
        y, b, t = self.new(), self.b, self.t
        y[b, t >= self.T - 2] = 0.0
        y[b, t] = f(p[b, t + 1]) - g(q[b, t + 2])
        return y

    def forward(self, p: Tensor, q: Tensor, f: Work, g: Work) -> Tensor:
        x, b, t = self.new(), self.b, self.t
        moved = x * 0.5 + f(x) * 0.4 + p * 0.1
        x[b, 0] = q[b, 0]
        x[b, t + 1] = moved
        return g(moved) - f(x)

    def backward(self, p: Tensor, q: Tensor, f: Work, g: Work) -> Tensor:
        x, b, t = self.new(), self.b, self.t
        moved = x * 0.5 + f(x) * 0.4 + p * 0.1
        x[b, self.T - 1] = q
        x[b, t] = moved[b, t + 1]
        return g(moved) - f(x)


def check(seed: int, backends: Iterable[str]) -> None:
    program = Writer(seed)
    expect_near(program.ctx, program.bounds, program.inputs, backends, f"seed {seed}")


@pytest.mark.parametrize("seed", range(6))
def test_neighbors(seed: int) -> None:
    check(seed, ["numpy"])


@pytest.mark.slow
def test_neighbors_on_every_backend() -> None:
    for seed in range(6, 12):
        check(seed, ["numpy", "jax", "torch"])


def test_most_are_read_at_another_point() -> None:
    """The pass has something to do."""
    counts: list[int] = []
    for seed in range(8):
        program = Writer(seed)
        made = program.ctx.compile(program.bounds, backend="numpy").compilation.compiled
        laws = made.stages.cx.fuel.laws
        counts.append(sum(n for law, n in laws.items() if law.startswith("computed at two points")))
    assert sum(n > 0 for n in counts) >= 4, counts


@seeded_at_length(0.5)
def test_neighbors_long(seeds: range) -> None:
    each(seeds, lambda seed: check(seed, ["numpy"] if seed % 4 else ["numpy", "jax", "torch"]))
