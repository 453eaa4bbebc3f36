"""Random programs with `rc.cond`, everything it decides left out where it can be.

They give what the same programs give with `rc.where`, and call the host only where they are asked.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import recurra as rc
from everywhere import interpreted
from fuzzing import each, seeded_at_length
from recurra.analysis import data_conditions
from recurra.frontend.context import Context
from recurra.frontend.tensor import RecurrentTensor as Tensor
from recurra.transforms.vectorize import loop_groups, plan


class Writer:
    """A program over rows b and points t, whose tensors are chosen by data from others."""

    def __init__(self, seed: int, lazy: bool) -> None:
        self.random, self.lazy = Random(seed), lazy
        self.calls: list[tuple[int, float]] = []
        rows, points = self.random.choice([1, 2, 3]), self.random.choice([1, 2, 3, 5, 8])
        rng = np.random.default_rng(seed)
        shapes = {"o": (rows, points, 3), "w": (3, 3), "c": (points,), "e": (rows,)}
        self.inputs = {k: rng.standard_normal(s).astype("f4") for k, s in shapes.items()}
        self.ctx = Context(dims="b t")
        with self.ctx as ((self.b, self.B), (self.t, self.T)):
            self.bounds = {self.B: rows, self.T: points}
            o = rc.input(rc.f32[3], (self.b, self.t), name="o")
            self.w = rc.input(rc.f32[3, 3], (), name="w")
            c, e = (
                rc.input(rc.f32[()], (self.t,), name="c"),
                rc.input(rc.f32[()], (self.b,), name="e"),
            )
            self.truths = [c > 0.0, e > 0.0, o.sum() > 0.0, (c > 0.0) & (e < 0.5), self.w.sum() > 0]
            self.made = [o]
            for _ in range(self.random.randint(2, 6)):
                kind = self.random.choice(
                    [self.chosen, self.state, self.apart, self.summed, self.hosted]
                )
                self.made.append(kind())
            outputs = {
                f"y{k}": y for k, y in enumerate(self.made[1:]) if self.random.random() < 0.7
            }
            outputs["last"] = self.made[-1]
            if self.random.random() < 0.5 and not self.calls:
                self.made[-1][0 : self.B, 0 : self.T].square().sum().backward(wrt=[self.w, o])
                outputs |= {k: x.grad for k, x in (("dw", self.w), ("do", o)) if x.grad is not None}
            rc.output(**outputs)

    def pick(self) -> Tensor:
        return self.made[-1 - int(self.random.random() ** 2 * len(self.made))]

    def truth(self) -> Tensor:
        if self.random.random() < 0.3:
            self.truths.append(self.pick().sum() > self.random.choice([-1.0, 0.0, 1.0]))
        return self.random.choice(self.truths)

    def work(self, x: Tensor) -> Tensor:
        for _ in range(self.random.randint(1, 3)):
            x = self.random.choice(
                [
                    lambda x: (self.w @ x).tanh(),
                    lambda x: x.softmax(axis=0),
                    lambda x: self.choose(self.truth(), (self.w @ x).sin(), x * 0.5),
                    lambda x: x * self.pick().tanh(),
                ]
            )(x)
        return x

    def choose(self, p: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return rc.cond(p, a, b) if self.lazy else rc.where(p, a, b)

    def chosen(self) -> Tensor:
        a, b = self.work(self.pick()), self.pick()
        if self.random.random() < 0.4:
            b = self.work(b)
        return self.choose(self.truth(), *((a, b) if self.random.random() < 0.5 else (b, a)))

    def state(self) -> Tensor:
        """A recurrence, forward or backward, whose step is chosen."""
        h = rc.like(rc.f32[3], domain=(self.b, self.t))
        x = self.pick()
        back = self.random.random() < 0.4
        t, T = self.t, self.T

        before = h[self.b, t + 1] if back else h[self.b, t - 1]
        p = self.truth() if self.random.random() < 0.6 else before.sum() + x.sum() > 0.0
        step = self.choose(p, (self.w @ before + self.work(x)).tanh(), before * 0.9)
        if back:
            h[self.b, T - 1], h[self.b, t] = x, step
        else:
            h[self.b, 0], h[self.b, t] = x, step
        return h

    def apart(self) -> Tensor:
        """What is decided at one point is read at another, too."""
        a = self.work(self.pick())
        y = self.choose(self.truth(), a, self.pick())
        return y + rc.where(self.t > 0, a[self.b, self.t - 1], 0.0)

    def summed(self) -> Tensor:
        """A sum over what is chosen."""
        y = self.chosen()
        return y[self.b, 0 : self.t + 1].sum(0) + self.choose(
            self.truth(), y[self.b, 0 : self.T].max(0), y
        )

    def hosted(self) -> Tensor:
        """A function of the host, asked for by one side."""
        which, calls = len(self.made), self.calls

        def f(x: np.ndarray) -> np.ndarray:
            calls.append((which, round(float(x.sum()), 3)))
            return x * 2

        y = rc.call(f, rc.f32[3], self.pick())
        return self.choose(self.truth(), self.work(y), self.pick())


def _agrees(seed: int, backends: tuple[str, ...]) -> None:
    eager, lazy = Writer(seed, lazy=False), Writer(seed, lazy=True)
    want = interpreted(eager.ctx, eager.bounds, eager.inputs)
    lazy.calls.clear()
    have = interpreted(lazy.ctx, lazy.bounds, lazy.inputs)
    asked = sorted(lazy.calls)
    assert len(asked) <= len(eager.calls)
    for name, x in want.items():
        np.testing.assert_allclose(have[name], x, rtol=2e-4, atol=2e-5, err_msg=f"{name} of {seed}")
    for backend in backends:
        made = lazy.ctx.compile(lazy.bounds, backend=backend)
        lazy.calls.clear()
        found = made.run(inputs={k: x for k, x in lazy.inputs.items() if k in made.inputs})
        assert [k for k, _ in sorted(lazy.calls)] == [k for k, _ in asked], (
            f"calls of {seed} on {backend}"
        )
        for name, x in want.items():
            where = f"{name} of {seed} on {backend}"
            np.testing.assert_allclose(found[name], x, rtol=2e-4, atol=2e-5, err_msg=where)


@pytest.fixture(autouse=True)
def all_that_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that data decide is left out where they say so, whatever it costs."""
    monkeypatch.setattr(data_conditions, "GUARD_NS", -1.0)
    monkeypatch.setattr(plan, "MIN_DECIDED_NS", -1.0)
    monkeypatch.setattr(loop_groups, "MIN_DECIDED_NS", -1.0)


@pytest.mark.parametrize("seed", range(5))
def test_conditions(seed: int) -> None:
    _agrees(seed, ("numpy",))


@pytest.mark.slow
def test_conditions_on_every_backend() -> None:
    for seed in range(5, 9):
        _agrees(seed, ("numpy", "jax", "torch"))


def test_most_programs_leave_something_out() -> None:
    counts: list[int] = []
    for seed in range(4):
        program = Writer(seed, lazy=True)
        made = program.ctx.compile(program.bounds, backend="numpy").compilation.compiled
        counts.append(sum(s.polls for s in made.plan.statements.statements.values()))
    assert all(counts), counts


@seeded_at_length(0.5)
def test_conditions_long(seeds: range) -> None:
    backends = ("numpy", "jax", "torch")
    each(seeds, lambda seed: _agrees(seed, ("numpy",) if seed % 4 else backends))
