"""Random tables of which a few rows, columns, corners and diagonals are read.

The pass forward_substitution computes most of them where they are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import numpy as np
import pytest

import recurra as rc
from everywhere import expect_near
from fuzzing import each, seeded_at_length
from recurra.frontend.context import Context
from recurra.frontend.tensor import RecurrentTensor as Tensor


class Writer:
    """A program over a square of points, of tables and of what is read at their faces."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        n = self.random.choice([1, 2, 4, 6])
        rng = np.random.default_rng(seed)
        shapes = {"x": (n, 3), "y": (n, 3), "w": (3, 3)}
        self.inputs = {k: rng.standard_normal(s).astype("f4") for k, s in shapes.items()}
        self.ctx = Context(dims="i j")
        with self.ctx as ((self.i, self.I), (self.j, self.J)):
            self.bounds = {self.I: n, self.J: n}
            x = rc.input(rc.f32[3], (self.i,), name="x")
            y = rc.input(rc.f32[3], (self.j,), name="y")
            self.w = rc.input(rc.f32[3, 3], (), name="w")
            self.tables = [x * y]
            self.lines: list[Tensor] = []
            for _ in range(self.random.randint(2, 4)):
                self.tables.append(self.table(self.random.choice(self.tables)))
                self.lines.append(self.line(self.face()))
            loss = self.lines[-1]
            for dim, bound in ((self.i, self.I), (self.j, self.J)):
                if str(dim) in loss.domain.dims:
                    loss = loss[0:bound].sum(axis=0)
            outputs = {f"y{k}": x * 1.0 for k, x in enumerate(self.lines)}
            if self.random.random() < 0.5:
                loss.square().sum().backward(wrt=[x])
                assert x.grad is not None
                outputs["slope"] = x.grad
            rc.output(**outputs)

    def table(self, u: Tensor) -> Tensor:
        kind = self.random.randrange(5)
        if kind == 0:
            return (self.w @ u).tanh()
        if kind == 1:
            return u.sum().expand(3) * 0.3 + u
        if kind == 2:
            return u.softmax(axis=0) * self.random.choice(self.tables)
        if kind == 3:
            v, i, j = rc.like(rc.f32[3], (self.i, self.j)), self.i, self.j
            v[0, j] = u[self.I - 1, j]
            v[i, 0] = u
            v[i, j] = (0.5 * v[i - 1, j] + 0.4 * v[i, j - 1] + 0.1 * u).tanh()
            return v
        return u.sin() + 0.5

    def face(self) -> Tensor:
        u, i, j, last = self.random.choice(self.tables), self.i, self.j, self.J - 1
        return self.random.choice(
            [
                lambda: u[0, j],
                lambda: u[self.I - 1, j],
                lambda: u[i, last],
                lambda: u[i, i],
                lambda: u[i, self.J - 1 - i],
                lambda: u[0, 0],
                lambda: u[i // 2, 0],
            ]
        )()

    def line(self, f: Tensor) -> Tensor:
        kind, g = self.random.randrange(3), self.face()
        if kind == 0 or not f.domain.dims:
            return f * 0.5 + g if f.domain.dims == g.domain.dims else f.tanh()
        (d,) = f.domain.dims
        d, at = (self.i, self.I) if d == "i" else (self.j, self.J)
        s = rc.like(rc.f32[3], (d,))
        if kind == 1:
            s[0] = f
            s[d] = (0.5 * s[d - 1] + f).tanh()
        else:
            s[at - 1] = f
            s[d] = (0.5 * s[d + 1] - f).tanh()
        return s


def check(seed: int, backends: Iterable[str]) -> None:
    program = Writer(seed)
    expect_near(program.ctx, program.bounds, program.inputs, backends, f"seed {seed}")


@pytest.mark.slow
def test_random_programs() -> None:
    for seed in range(12):
        check(seed, ["numpy"])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(20, 80, 20))
def test_more_random_programs(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed, ["numpy"])


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.usefixtures("hasty_xla")
def test_random_programs_on_backends(backend: str) -> None:
    for seed in range(12, 16):
        check(seed, [backend])


@seeded_at_length()
def test_many_random_programs(seeds: range) -> None:
    each(seeds, lambda seed: check(seed, ["numpy"]))
