"""Random programs as users write them, at their edges: few points, periods, clamps, tiles, offload.

A seed is a program, its bounds, its inputs and the options that it is compiled with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

import recurra as rc
from everywhere import interpreted
from recurra.storage.offload import Offload

WORDS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x.tanh(),
    lambda x: x.square() + 0.5,
    lambda x: x.silu(),
    lambda x: x.erf(),
    lambda x: x.softmax(),
    lambda x: x.cumsum(axis=0),
    lambda x: x.flip(),
    lambda x: x.roll(1, axis=0),
    lambda x: x.sort(),
    lambda x: x * x.norm(),
    lambda x: x - x.logsumexp(),
    lambda x: x / (1.0 + x.std()),
    lambda x: x.clip(-0.5, 0.5),
    lambda x: rc.where(x > 0.1, x, -0.3 * x),
    lambda x: x.gather(0, rc.constant(np.array([2, 0, 1], np.int32))),
    lambda x: x.outer(x).sum(axis=1),
    lambda x: x.topk(2)[0].sum() - x,
    lambda x: x.topk(3, largest=False)[0],
    lambda x: x.gather(0, x.argsort(descending=True)),
    lambda x: x.cummax(),
    lambda x: x.cumprod(),
    lambda x: x.argmax().one_hot(3) + x,
    lambda x: x.take(x.argmin()) * x,
    lambda x: rc.where((x > 0.0).any(), x, x.prod()),
    lambda x: (x > 0.0).cumsum() * 0.25,
    lambda x: x.tile(2).cut(1, 4),
    lambda x: rc.concat([x, x.square()], axis=0).repeat(2, axis=0).cut(4, 7),
    lambda x: rc.stack([x, -x], axis=0).max(axis=0) - x.min(),
    lambda x: rc.zeros(3).scatter(0, rc.constant(np.array([1, 0, 2], np.int32)), x),
    lambda x: x.outer(x).tril().sum(axis=0),
    lambda x: x.log_softmax() * 0.1,
    lambda x: x.gelu() + x.relu(),
    lambda x: rc.einsum("a,b->ab", x, x) @ x,
    lambda x: x.cast("f16").cast("f32"),
    lambda x: (x * 3.0).round().cast("i32").cast("f32") * 0.3,
    lambda x: ((x * 3.0).floor().cast("i8") & 3).sum() * 0.1 + x,
)


@dataclass
class Drawn:
    """A program while it is written: `known` are its tensors, f32[3] over (*lead, b, t)."""

    r: Random
    lead: tuple[Any, ...]  # the dim of iterations, if there is one
    b: Any
    B: Any
    t: Any
    T: Any
    known: list[Any] = field(default_factory=list[Any])

    @property
    def row(self) -> tuple[Any, ...]:
        return (*self.lead, self.b)

    def some(self) -> Any:
        return self.r.choice(self.known)

    def read(self) -> Any:
        """A tensor, clamped to what is there, turned, or at half of the pace."""
        x, lead, row = self.some(), self.lead, self.row
        b, t, T, k = self.b, self.t, self.T, self.r.randint(1, 3)
        reads = (
            lambda: x,
            lambda: x,
            lambda: x[*row, rc.max(t - k, 0)],
            lambda: x[*row, rc.min(t + k, T - 1)],
            lambda: x[*row, T - 1 - t],
            lambda: x[*row, t // 2],
            lambda: x[*row, t - t % k],
            lambda: x[*lead, self.B - 1 - b, t],
            lambda: rc.where(b < self.B - 1, x[*lead, b + 1, t], x[*lead, 0, t]),
            lambda: x[*row, 0],
            lambda: x[*row, T - 1],
            lambda: x[*lead, 0, rc.min(k, T - 1)],
        )
        return self.r.choice(reads)()

    def branches(self) -> Any:
        """Reads of which some are out of range where they are not chosen."""
        x, lead, row = self.some(), self.lead, self.row
        b, t, T, k = self.b, self.t, self.T, self.r.randint(1, 3)
        other = self.read()
        cases = (
            lambda: rc.where(t >= k, x[*row, t - k], other),
            lambda: rc.where(t < T - k, x[*row, t + k], other),
            lambda: rc.where((t >= k) & (t < T - 1), x[*row, t - k] * x[*row, t + 1], other),
            lambda: rc.where(t % (k + 1) == 0, x, other),
            lambda: rc.where(t >= k, rc.where(t < T - k, x[*row, t + k], x[*row, t - k]), other),
            lambda: rc.where(t >= k, x[*row, t - k : t].mean(axis=0), other),
            lambda: rc.where(t >= k, (x[*row, k] * 2.0).tanh(), other),
            lambda: rc.where(k * t < T, x[*row, k * t], other),
            lambda: rc.where((b >= k) & (t % 2 == 1), x[*lead, b - k, t - 1], other),
            lambda: rc.where(t % k == k - 1, x[*row, t - k + 1 : t + 1].sum(axis=0), other),
        )
        return self.r.choice(cases)()

    def ranges(self) -> Any:
        x, lead, row = self.some(), self.lead, self.row
        t, T, k = self.t, self.T, self.r.randint(1, 4)
        cases = (
            lambda: x[*row, 0 : t + 1].mean(axis=0),
            lambda: x[*row, t:T].mean(axis=0),
            lambda: x[*row, t:T].discounted_sum(0.5),
            lambda: x[*row, rc.max(t - k, 0) : t + 1].max(axis=0),
            lambda: x[*row, t : rc.min(t + k, T)].sum(axis=0).tanh(),
            lambda: x[*row, 0:T].max(axis=0) - x,
            lambda: x[*lead, 0 : self.B, t].mean(axis=0) * x,
            lambda: x[*row, t - t % k : t + 1].sum(axis=0).tanh(),
            lambda: x[*row, 0:T:2].mean(axis=0) + x,
            lambda: x[*row, rc.max(T - k, 0) : T].min(axis=0),
            lambda: (x[*row, 0 : t + 1] @ x).softmax() @ x[*row, 0 : t + 1],
        )
        return self.r.choice(cases)()

    def recurrence(self) -> Any:
        """A loop up or down, one in turns, or one that goes on in the next iteration."""
        row, t, T, k = self.row, self.t, self.T, self.r.randint(2, 4)
        e, other = self.read(), self.read()
        y = rc.like(rc.f32[3], (*row, t))
        kind = self.r.randrange(8)
        if kind == 0:
            y[*row, 0] = e
            y[*row, t] = (0.5 * y[*row, t - 1] + other).tanh()
        elif kind == 1:
            y[*row, T - 1] = e
            y[*row, t] = (0.5 * y[*row, t + 1] + other).tanh()
        elif kind == 2:
            y[*row, t % k == 0] = e
            y[*row, t] = (0.5 * y[*row, t - 1] + other).tanh()
        elif kind == 3:
            y[*row, t < k] = e
            y[*row, t] = (0.5 * y[*row, t - k] + y[*row, t - 1] * other).tanh()
        elif kind == 4:  # the last point that is written is read by nobody
            y[*row, 0] = e
            y[*row, t + 1] = (0.5 * y + other).tanh()
        elif kind == 5:
            y[*row, 0] = e
            earlier = y[*row, t // 2] if k == 2 else y[*row, t - 1]
            y[*row, t] = (0.5 * earlier + other).tanh()
        elif kind == 6 and self.lead:
            (i,) = self.lead
            y[0, self.b, 0] = e
            y[i, self.b, 0] = y[i - 1, self.b, T - 1].detach() * 0.5
            y[*row, t] = (0.5 * y[*row, t - 1] + other).tanh()
        else:
            self.boxes(y, e, other)
        return y

    def boxes(self, y: Any, e: Any, other: Any) -> None:
        """Branches at random boxes, which may be empty, and what is left."""
        row, b, t, T, k = self.row, self.b, self.t, self.T, self.r.randint(1, 3)
        y[(b < k) & (t >= k)] = e
        y[*row, (t >= T - k) & (t % 2 == 0), t] = other
        y[*row, t] = e * other

    def word(self) -> Any:
        return self.r.choice(WORDS)(self.read())

    def hosted(self) -> Any:
        """A function of the host, of a point or of all rows at once."""
        batch = self.r.choice(((), (self.b,)))
        pure = self.r.random() < 0.7
        given = self.whole(self.read()).detach()
        return rc.call(lambda x: np.sin(x), rc.f32[3], given, batch=batch, pure=pure)

    def sum(self) -> Any:
        return (self.read() + self.r.choice((-0.5, 1.0)) * self.read()).tanh()

    def step(self) -> None:
        kinds = (
            self.read,
            self.branches,
            self.branches,
            self.ranges,
            self.recurrence,
            self.recurrence,
            self.word,
            self.sum,
            *[self.hosted] * (self.r.random() < 0.3),
        )
        self.known.append(self.whole(self.r.choice(kinds)()))

    def whole(self, made: Any) -> Any:
        """An equation over all dims, whatever is read."""
        y = rc.like(rc.f32[3], (*self.row, self.t))
        y[*self.row, self.t] = made
        return y


@dataclass(frozen=True)
class Edge:
    """A program with what it is compiled for and given."""

    ctx: rc.Context
    bounds: dict[Any, int]
    inputs: dict[str, np.ndarray]
    options: dict[str, Any]


def edge(seed: int) -> Edge:
    """The program of a seed."""
    r = Random(seed)
    names = r.choice(("b t", "b t", "i b t"))
    ctx = rc.Context(dims=names)
    with ctx as pairs:
        dims = dict(zip(names.split(), pairs, strict=True))
        (b, B), (t, T) = dims["b"], dims["t"]
        lead = tuple(i for i, _ in (dims["i"],)) if "i" in dims else ()
        x = rc.input(rc.f32[3], (b, t), name="x")
        w = first = rc.input(rc.f32[3], (), name="w")
        for (i,) in [lead] if lead else []:
            w = rc.like(rc.f32[3], (i,))
            w[0] = first
        d = Drawn(r, lead, b, B, t, T)
        d.known += [d.whole(x), d.whole(x * w)] if lead else [x, x * w]
        for _ in range(r.randint(2, 6)):
            d.step()
        last = d.whole(d.known[-1] * w)
        if lead or r.random() < 0.5:
            wrt = r.choice(([w], [w, x]))
            last[*lead, 0:B, 0:T].mean().sum().backward(wrt=wrt)
            rc.output(**{f"grad{k}": v.grad for k, v in enumerate(wrt) if v.grad is not None})
        for (i,) in [lead] if lead else []:
            w[i + 1] = w - 0.1 * w.grad
        whole = last[*lead, 0:B, 0:T]
        shown = r.choice((last, last.sum(), whole.sum(), last[*lead, b, T - 1]))
        rc.output(y=shown)
        if r.random() < 0.3:
            rc.output(z=d.some() * 1.0)
    rows, steps = r.choice((1, 2, 4, 8)), r.choice((1, 1, 2, 2, 3, 5, 8, 16))
    if r.random() < 0.04:  # where rows are tiled, and points made in chunks
        rows, steps = r.choice(((96, 2), (2, 40)))
    rng = np.random.default_rng(seed)
    given = {
        "x": rng.normal(size=(rows, steps, 3)).astype(np.float32),
        "w": rng.normal(size=3).astype(np.float32),
    }
    options: dict[str, Any] = {}
    for name, values in OPTIONS.items():
        if r.random() < 0.3:
            options[name] = r.choice(values)
    counts = {"b": rows, "t": steps, "i": r.randint(1, 4)}
    return Edge(ctx, {dims[d][1]: counts[d] for d in dims}, given, options)


OPTIONS: dict[str, tuple[Any, ...]] = {
    "vectorized": (False,),
    "tile_rows": (4,),
    "tile_points": (2, 4),
    "memory_price": (1.0, 4096.0),
    "launch_steps": (1, 3),
    "batch_last": (True, False),
    "min_peeled_points": (1,),
    "offload": (Offload("host", least=0, room=2), Offload("disk", least=0)),
}


def compare(seed: int, backend: str) -> None:
    """Check the program of a seed."""
    check(edge(seed), backend)


def check(e: Edge, backend: str) -> None:
    """Raise AssertionError where a backend differs from the interpreter."""
    program = e.ctx.compile(e.bounds, backend=backend, **e.options)
    want = interpreted(e.ctx, e.bounds, e.inputs)
    have = program.run(inputs={k: x for k, x in e.inputs.items() if k in program.inputs})
    assert have.keys() == want.keys()
    for name, y in want.items():
        np.testing.assert_allclose(have[name], y, rtol=1e-3, atol=1e-4, err_msg=name)
