"""Random programs whose rows end where the data say; each row alone has a fixed length."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import recurra as rc
from recurra.frontend.index_arguments import unwrap
from recurra.ir.expr import Expr, evaluate
from recurra.ir.graph import Graph
from recurra.reference import interpreter
from recurra.runtime.executable import Executable
from renamed import shuffled

MOST = 6
Row = tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """One program: its equations, with the loss as a mean over all points or as their sum."""

    ctx: rc.Context
    done: Any
    first: Any  # a number, or of the dims of the rows
    graph: Graph  # with a bound of its own for each dim
    inputs: Mapping[str, np.ndarray]  # [*rows, MOST, ..]
    stop: Any = None  # ends the rows of rows, where there are such

    @property
    def bounds(self) -> dict[str, int]:
        """Of the dims that rows are over."""
        *rows, _ = self.ctx.pairs
        sizes = self.inputs["done"].shape
        return {str(unwrap(bound)): n for (_, bound), n in zip(rows, sizes, strict=False)}

    @property
    def rows(self) -> Iterator[Row]:
        return np.ndindex(*self.bounds.values())

    @property
    def first_point(self) -> Expr | int:
        return unwrap(self.first)

    def length(self, row: Row) -> int:
        """Points of a row."""
        dims = [str(unwrap(dim)) for dim, _ in self.ctx.pairs]
        first = evaluate(self.first_point, dict(zip(dims, row, strict=False)))
        done = self.inputs["done"][row] & (np.arange(MOST) >= first)
        return int(done.argmax()) + 1 if done.any() else MOST

    @property
    def until(self) -> str:
        """The bound that rows end at."""
        return str(unwrap(self.ctx.pairs[-1][1]))

    @property
    def names(self) -> Mapping[str, str]:
        """What is put out, and its equation."""
        return self.ctx.builder.logs

    def compile(self, every: int | None = None, **options: Any) -> Executable:
        """The program for as many rows as there are inputs for."""
        *rows, (_, t) = self.ctx.pairs
        ends = rc.until(self.done, from_=self.first, max=MOST, every=every)
        bounds = zip((bound for _, bound in rows), self.bounds.values(), strict=True)
        return self.ctx.compile({**dict(bounds), t: ends}, **options)

    def alone(self, row: Row, level: float) -> dict[str, np.ndarray]:
        """A row as a program of its own length; what it knows of all rows is given."""
        one = tuple(slice(k, k + 1) for k in row)
        mine = {n: x[(*one, slice(self.length(row)))] for n, x in self.inputs.items()}
        mine = {n: x for n, x in mine.items() if n in self.graph.nodes}
        sizes = {**dict.fromkeys(self.bounds, 1), self.until: self.length(row)}
        found = interpreter.run(self.graph, sizes, {**mine, "given": np.float32(level)})
        return {
            n: found[e][(0,) * len(row)] if n in OF_ROWS else found[e]
            for n, e in self.names.items()
        }


OF_ROWS = ("y", "last", "long")
OF_ALL = ("loss", "d_w", "d_v", "level")


@dataclass
class Writer:
    """Draws tensors over rows and t, made of those before."""

    pick: random.Random
    row: tuple[Any, ...]
    t: Any
    T: Any
    w: Any
    v: Any  # f32[2, 2]
    pool: list[Any]
    level: Callable[[Any], Any]  # the mean of a tensor over all rows

    def any(self) -> Any:
        return self.pick.choice(self.pool)

    def one(self, *kinds: Callable[[], Any]) -> Any:
        return self.pick.choice(kinds)()

    def at(self, u: Any, t: Any) -> Any:
        """`u` of the same row at t."""
        return u[(*self.row, t)]

    def like(self, of: Any = rc.f32) -> Any:
        return rc.like(of, domain=(*self.row, self.t))

    def forward(self) -> Any:
        u, h = self.any(), self.like()
        h[(*self.row, 0)] = self.at(u, 0)
        h[(*self.row, self.t + 1)] = (h * self.w + u).tanh()
        return h

    def backward(self) -> Any:
        u, h = self.any(), self.like()
        h[self.t == self.T - 1] = u * 0.5
        h[(*self.row, self.t)] = (u + self.at(h, self.t + 1) * self.w).sin()
        return h

    def cell(self) -> Any:
        """A recurrence of vectors, forwards or backwards, with a matrix."""
        u, h = self.any(), self.like(rc.f32[2])
        start = u * rc.constant(np.array([1.0, -0.5], np.float32))
        if self.pick.random() < 0.5:
            h[(*self.row, 0)] = self.at(start, 0)
            h[(*self.row, self.t + 1)] = (rc.einsum("kl,l->k", self.v, h) + start).tanh()
        else:
            h[self.t == self.T - 1] = start
            h[(*self.row, self.t)] = (self.v @ self.at(h, self.t + 1) + start).sin()
        ahead, whole = self.at(h, slice(self.t, self.T)), self.at(h, slice(0, self.T))
        return self.one(
            lambda: rc.einsum("k,k->", h, start),
            lambda: h.sum(),
            lambda: h.index(1) * u,
            lambda: (h.softmax() * start).sum(),
            lambda: (ahead.sum(axis=0) * start).sum() * 0.3,
            lambda: rc.einsum("tk,k->t", ahead, h).max(),
            lambda: rc.einsum("tk,tl->kl", ahead, ahead).tanh().sum() * 0.1,
            lambda: rc.einsum("tk,kl->tl", whole, self.v).sum().tanh() * u,
            lambda: (whole @ self.at(h, self.T - 1)).softmax().max() * u,  # attention
        )

    def ahead(self) -> Any:
        t, n = self.t, self.pick.choice([1, 2, 3])
        ends = [self.T, self.T, rc.min(t + n, self.T)]
        u, end = self.any(), self.pick.choice(ends)
        part, other = self.at(u, slice(t, end)), self.at(self.any(), slice(t, end))
        if self.pick.random() < 0.3:
            part = (part * self.w).sin()
        if self.pick.random() < 0.3:
            part = part * u
        return self.one(
            lambda: part.sum() * 0.3,
            part.max,
            part.min,
            part.mean,
            lambda: part.discounted_sum(0.8),
            lambda: (part.softmax() * part).sum(),
            lambda: part.log_softmax().min() * 0.2,
            lambda: rc.einsum("k,k->", part, part).tanh(),
            lambda: rc.einsum("k,k->", part, other).tanh(),
            lambda: rc.minimum(part, other).sum().tanh(),
            lambda: rc.where(part > other, part, 0.1).sum().tanh(),
            lambda: part.cumsum().max().tanh(),
            lambda: self.turned(part, other, u),
            lambda: part.flip().sum().tanh() + u * 0.1,
        )

    def turned(self, part: Any, other: Any, u: Any) -> Any:
        """A range from its end."""
        back = part.flip()
        return self.one(
            lambda: back.cumsum().max().tanh(),
            lambda: (back.cumsum() * u).tanh().sum() * 0.3,
            lambda: rc.einsum("k,k->", back, other).tanh(),
            lambda: (back * other).max(),
            lambda: back.discounted_sum(0.7),
            lambda: (back.softmax() * part).sum(),
            lambda: back.index(0) * 0.5,
            lambda: back.argmax().cast("f32") * 0.1 + u,
            lambda: (other.flip().cumsum() * back).flip().sum().tanh(),
        )

    def behind(self) -> Any:
        part = self.at(self.any(), slice(rc.max(self.t - 2, 0), self.t + 1))
        return self.one(part.sum, part.max).tanh()

    def end(self) -> Any:
        u, T = self.any(), self.T
        whole = self.at(u, slice(0, T))
        got = self.one(
            lambda: self.at(u, T - 1),
            lambda: self.at(u, rc.min(self.t + 2, T - 1)),
            whole.mean,
            whole.max,
            whole.min,
            lambda: (whole.softmax() * whole).sum(),
            lambda: whole.cumsum().index(self.t),
            lambda: (whole * self.at(u, T - 1)).sum().tanh(),
            lambda: (whole - whole.mean()).square().mean(),
        )
        return got + self.any() * 0.1

    def choice(self) -> Any:
        t, T = self.t, self.T
        conditions = [
            *(t == T - 1, t + 2 < T, (t >= T - 2) & (t > 0), t != T - 1, t + 1 >= T),
            *(t < rc.min(3, T - 1), (t == 0) | (t > T - 3), t >= rc.max(T - 2, 1), T > 3),
        ]
        return rc.where(self.pick.choice(conditions), self.any(), self.any() * 0.5)

    def by_data(self) -> Any:
        u, v = self.any(), self.any()
        return self.one(
            lambda: rc.where(u > 0.1, v, u * 0.5),
            lambda: rc.minimum(u, v) + rc.maximum(u, v * 0.5),
            lambda: (u / (v.square() + 1.0)).tanh(),
            lambda: (u.abs() + 0.5).log() - (v.square() + 1.0).sqrt(),
        )

    def number(self) -> Any:
        t, T, u = self.t, self.T, self.any()
        return self.one(
            lambda: (u * rc.value(t + 1, "f32") / rc.value(T, "f32")).sin(),
            lambda: (u + rc.value(T - t, "f32")).sin(),
            lambda: u * rc.value(rc.min(t + 2, T), "f32") * 0.2,
            lambda: rc.where(rc.value(t + 1 < T, "bool"), u, 0.3),
        )

    def integers(self) -> Any:
        """Counted by data: up to now, from now on; a row of a table."""
        hits = (self.any() > 0.0).cast("i32")
        count = self.like(rc.i32)
        count[(*self.row, 0)] = self.at(hits, 0)
        count[(*self.row, self.t + 1)] = count + self.at(hits, self.t + 1)
        ahead = self.at(hits, slice(self.t, self.T))
        table = rc.constant(np.linspace(-1.0, 1.0, MOST + 1, dtype=np.float32))
        k = self.one(
            lambda: count,
            lambda: ahead.sum(),
            lambda: ahead.max() + 1,
            lambda: self.at(self.any(), slice(self.t, self.T)).argmax(),
            lambda: rc.minimum(count, ahead.sum()),
            lambda: self.at(count, self.T - 1) - hits,
        )
        return self.one(
            lambda: table.take(k) * self.any(),
            lambda: k.cast("f32") * 0.2 + self.any(),
            lambda: rc.einsum("k,k->", k.one_hot(MOST + 1), table) + self.any() * 0.1,
        )

    def truths(self) -> Any:
        """Truth values of rows."""
        high = self.any() > 0.3
        part = self.at(high, slice(self.t, self.T))
        whole = self.at(high, slice(0, self.T))
        c = self.one(part.any, part.all, whole.any, whole.all, lambda: ~part.any() | high)
        return rc.where(c, self.any(), self.any() * 0.5)

    def mixed(self) -> Any:
        return (self.any() * self.any() + self.any()).tanh()

    def against_all(self) -> Any:
        """Less the mean over all rows: nothing else that a row knows of the others."""
        return self.level(self.pool[1]) + self.any()


MAKERS = (
    *("forward", "backward", "cell", "cell", "ahead", "ahead", "behind", "end", "choice"),
    *("by_data", "number", "integers", "truths", "mixed", "against_all"),
)


def write(seed: int, mean: bool, nested: bool = False) -> Rows:
    """The program of a seed. Its loss is the mean over all points, or else their sum.

    With `nested` its rows are over two dims, of which the data may end the second, too. Where the
    loss is a mean, the level is one too, of all rows; else it is a number that is given.
    """
    pick, numbers = random.Random(seed), np.random.default_rng(seed)
    wide = pick.random() < 0.3 or nested
    ctx = rc.Context(dims=shuffled("b i t" if wide else "b t", seed))
    with ctx as pairs:
        *rows, (t, T) = pairs
        row = tuple(r for r, _ in rows)
        whole = (*(slice(0, bound) for _, bound in rows), slice(0, T))
        done = rc.input(rc.boolean, (*row, t), name="done")
        x = rc.input(rc.f32, (*row, t), name="x")
        z = rc.input(rc.f32[2], (*row, t), name="z")
        w = rc.constant(np.float32(pick.choice([0.4, 0.7])))
        v = rc.constant(np.array([[0.3, -0.5], [0.6, 0.2]], np.float32))
        given = rc.input(rc.f32, (), name="given")

        def level(u: Any) -> Any:
            return u[whole].mean().detach() if mean else given

        draw = Writer(pick, row, t, T, w, v, [x, x * w, z.sum() * 0.5], level)
        for _ in range(pick.randint(2, 6)):
            draw.pool.append(getattr(draw, pick.choice(MAKERS))())
        y = draw.pool[-1] + draw.pool[-2] * 0.5 + draw.any() * w + (v @ z).sum() * 0.1
        loss = y[whole].mean() if mean else y[whole].sum()
        loss.backward(wrt=[w, v])
        first = pick.choice([0, 1, 2, row[-1] + 1, rc.min(row[0] * 2, 3)])
        last, long = y[(*row, T - 1)], y[(*row, slice(0, T))].sum()
        about = draw.pool[1][whole]
        rc.output(y=y, loss=loss, last=last, long=long, d_w=w.grad, d_v=v.grad)
        stop = rc.input(rc.boolean, row, name="stop") if nested else None
        rc.output(level=about.mean() if mean else about.sum(), count=rc.value(T, "i32"))
    sizes = (2, 3, MOST) if wide else (3, MOST)
    x0 = numbers.normal(size=sizes).astype(np.float32)
    z0 = numbers.normal(size=(*sizes, 2)).astype(np.float32)
    ends = numbers.random(sizes) < pick.choice([0.0, 0.25, 0.5])
    given = {"done": ends, "x": x0, "z": z0}
    return Rows(ctx, done, first, ctx.builder.graph(["done"]), given, stop)


def expected(rows: Rows, sums: Rows) -> dict[str, np.ndarray]:
    """From every row alone, at its own length."""
    points = sum(map(rows.length, rows.rows))
    level = sum(sums.alone(r, 0.0)["level"] for r in rows.rows) / points
    alone = {r: sums.alone(r, level) for r in rows.rows}
    shape = tuple(rows.bounds.values())
    out: dict[str, np.ndarray] = {}
    for name in sums.names:
        found = [x[name] for x in alone.values()]
        if name in OF_ALL:
            out[name] = sum(found) / points
            continue
        if name == "y":
            found = [np.pad(x, (0, MOST - len(x))) for x in found]
        out[name] = np.reshape(np.stack(found), (*shape, *np.shape(found[0])))
    return out
