"""Random programs whose rows end where the data say; each row alone has a fixed length."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import recurra as rc
from recurra import interp
from recurra.executable import Executable
from recurra.ir.graph import Graph

ROWS, MOST = 3, 6


@dataclass(frozen=True)
class Rows:
    """One program: its equations, with the loss as a mean over all points or as their sum."""

    ctx: rc.Context
    done: Any
    graph: Graph  # with B and T
    inputs: Mapping[str, np.ndarray]  # [B, MOST, ..]

    def lengths(self, first: int) -> np.ndarray:
        """[B]: points of each row."""
        done = self.inputs["done"] & (np.arange(MOST) >= first)
        return np.where(done.any(axis=1), done.argmax(axis=1) + 1, MOST)

    @property
    def names(self) -> Mapping[str, str]:
        """What is put out, and its equation."""
        return self.ctx.tracer.logs

    def compile(self, first: int, **options: Any) -> Executable:
        """The program for as many rows as there are inputs for."""
        (_, b), (_, t) = self.ctx.pairs
        ends = rc.until(self.done, from_=first, max=MOST)
        return self.ctx.compile({b: ROWS, t: ends}, **options)

    def alone(self, b: int, length: int) -> dict[str, np.ndarray]:
        """Row `b` as a program of that length."""
        mine = {n: x[b : b + 1, :length] for n, x in self.inputs.items()}
        mine = {n: x for n, x in mine.items() if n in self.graph.nodes}
        return interp.run(self.graph, {"B": 1, "T": length}, mine)


@dataclass
class Writer:
    """Draws tensors over (b, t), made of those before."""

    pick: random.Random
    b: Any
    t: Any
    T: Any
    w: Any
    pool: list[Any]

    def any(self) -> Any:
        return self.pick.choice(self.pool)

    def one(self, *kinds: Callable[[], Any]) -> Any:
        return self.pick.choice(kinds)()

    def forward(self) -> Any:
        u, h = self.any(), rc.like(rc.f32, domain=(self.b, self.t))
        h[self.b, 0] = u[self.b, 0]
        h[self.b, self.t + 1] = (h * self.w + u).tanh()
        return h

    def backward(self) -> Any:
        u, h = self.any(), rc.like(rc.f32, domain=(self.b, self.t))
        h[self.t == self.T - 1] = u * 0.5
        h[self.b, self.t] = (u + h[self.b, self.t + 1] * self.w).sin()
        return h

    def ahead(self) -> Any:
        t, n = self.t, self.pick.choice([1, 2, 3])
        part = self.any()[self.b, t : self.pick.choice([self.T, rc.min(t + n, self.T)])]
        if self.pick.random() < 0.3:
            part = (part * self.w).sin()
        return self.one(
            lambda: part.sum() * 0.3,
            part.max,
            part.min,
            part.mean,
            lambda: part.discounted_sum(0.8),
            lambda: (part.softmax() * part).sum(),
            lambda: rc.einsum("k,k->", part, part).tanh(),
        )

    def behind(self) -> Any:
        part = self.any()[self.b, rc.max(self.t - 2, 0) : self.t + 1]
        return self.one(part.sum, part.max).tanh()

    def end(self) -> Any:
        u, b, T = self.any(), self.b, self.T
        got = self.one(
            lambda: u[b, T - 1],
            lambda: u[b, rc.min(self.t + 2, T - 1)],
            lambda: u[b, 0:T].mean(),
            lambda: u[b, 0:T].max(),
            lambda: (u[b, 0:T].softmax() * u[b, 0:T]).sum(),
            lambda: u[b, 0:T].cumsum().index(self.t),
        )
        return got + self.any() * 0.1

    def choice(self) -> Any:
        t, T = self.t, self.T
        conditions = [t == T - 1, t + 2 < T, (t >= T - 2) & (t > 0), t != T - 1]
        return rc.where(self.pick.choice(conditions), self.any(), self.any() * 0.5)

    def number(self) -> Any:
        t, T, u = self.t, self.T, self.any()
        return self.one(
            lambda: (u * rc.value(t + 1, "f32") / rc.value(T, "f32")).sin(),
            lambda: (u + rc.value(T - t, "f32")).sin(),
        )

    def mixed(self) -> Any:
        return (self.any() * self.any() + self.any()).tanh()


MAKERS = ("forward", "backward", "ahead", "behind", "end", "choice", "number", "mixed")


def write(seed: int, mean: bool) -> Rows:
    """The program of a seed. Its loss is the mean over all points, or else their sum."""
    pick, numbers = random.Random(seed), np.random.default_rng(seed)
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        done = rc.input(rc.boolean, (b, t), name="done")
        x = rc.input(rc.f32, (b, t), name="x")
        w = rc.constant(np.float32(pick.choice([0.4, 0.7])))
        draw = Writer(pick, b, t, T, w, [x, x * w])
        for _ in range(pick.randint(2, 5)):
            draw.pool.append(getattr(draw, pick.choice(MAKERS))())
        y = draw.pool[-1] + draw.pool[-2] * 0.5 + draw.any() * w
        loss = y[0:B, 0:T].mean() if mean else y[0:B, 0:T].sum()
        loss.backward(wrt=[w])
        rc.output(y=y, loss=loss, last=y[b, T - 1], long=y[b, 0:T].sum(), d_w=w.grad)
    x0 = numbers.normal(size=(ROWS, MOST)).astype(np.float32)
    ends = numbers.random((ROWS, MOST)) < pick.choice([0.0, 0.25, 0.5])
    return Rows(ctx, done, ctx.tracer.graph(["done"]), {"done": ends, "x": x0})
