"""pad: every element that the program has keeps its value, and padding holds what is claimed of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from recurra.errors import RecurraError
from recurra.interp import Oracle, points
from recurra.ir.expr import evaluate, symbols
from recurra.ir.graph import Graph
from recurra.ir.text import parse
from recurra.ir.types import Type
from recurra.ir.verify import verify
from recurra.ops.control import Merge
from recurra.rewrite.lift import lift
from recurra.rewrite.pad import pad, pad_with_fills
from recurra.rewrite.padding import Unknown
from recurra.rewrite.simplify import simplify
from test_passes import inputs, same_answers

SIZES = ({"B": 2, "T": 5}, {"B": 3, "T": 3}, {"B": 1, "T": 1})


def check(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Pads, and compares every equation at every point with the program's."""
    after, fills = pad_with_fills(graph, sizes)
    verify(after)
    assert parse(str(after)) == after
    assert pad(after, sizes) == after
    dims = {r.dim for r in graph.dims}
    for n in after.nodes.values():
        assert isinstance(n.type, Type)
        assert not set().union(*map(symbols, n.type.shape)) & dims, n
    same_answers(graph, after, sizes)
    data = inputs(graph, sizes)
    old, new = Oracle(graph, sizes, data, 3), Oracle(after, sizes, data, 3)
    with np.errstate(all="ignore"):
        for name in after.nodes.keys() & graph.nodes.keys():
            for point in points(after, name, sizes):
                compare(name, old.value(name, point), new.value(name, point), fills.get(name, ()))
    return after


def compare(name: str, want: Any, have: Any, fills: tuple[Any, ...]) -> None:
    valid = have[tuple(slice(n) for n in want.shape)]
    np.testing.assert_allclose(valid, want, rtol=2e-5, atol=1e-6, err_msg=name)
    for axis, f in enumerate(fills):
        rest = np.moveaxis(have, axis, 0)[want.shape[axis] :]
        if f is None:
            assert not rest.size, name
        elif not isinstance(f, Unknown):
            np.testing.assert_allclose(rest, f, rtol=1e-5, err_msg=f"the fill of {name}")
        elif f is Unknown.FINITE:
            assert np.isfinite(rest.astype("f8")).all(), f"{name} is not finite past its end"


# ---- programs

READS: dict[str, Callable[[Any, Any], slice]] = {
    "prefix": lambda t, T: slice(0, t + 1),
    "suffix": lambda t, T: slice(t, T),
    "ahead": lambda t, T: slice(t, rc.min(t + 3, T)),
    "behind": lambda t, T: slice(rc.max(t - 2, 0), t + 1),
    "around": lambda t, T: slice(rc.max(t - 1, 0), rc.min(t + 2, T)),
    "offset": lambda t, T: slice(rc.max(t - 3, 0), rc.max(t - 1, 1)),
    "strided": lambda t, T: slice(0, t + 1, 2),
}
EMPTY = {
    "before": lambda t, T: slice(0, t),
    "after": lambda t, T: slice(t + 1, T),
}
UNARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "exp": lambda u, x, c: u.tanh().exp(),
    "log": lambda u, x, c: u + x.abs().log(),
    "inverse": lambda u, x, c: u - 1.0 / x,
    "cos": lambda u, x, c: u.cos(),
    "add": lambda u, x, c: u + c,
    "scale": lambda u, x, c: u * c,
    "share": lambda u, x, c: u / (c + 0.5),
    "relu": lambda u, x, c: u.relu(),
    "chosen": lambda u, x, c: rc.where(u > 0.0, u, c),
    "square": lambda u, x, c: (u * 0.5) ** 2,
    "flip": lambda u, x, c: u.flip(0),
    "cumsum": lambda u, x, c: u.cumsum(0),
    "turned": lambda u, x, c: u.transpose().exp().transpose() * 0.1,
    "centred": lambda u, x, c: u - u.sum(axis=0) * 0.5,
    "copied": lambda u, x, c: (u.expand(2, axis=0) * 0.5).sum(axis=0),
    "twice": lambda u, x, c: u + rc.concat([u, x]).sum(axis=0) * 0.1,
    "plus": lambda u, x, c: u + x,
    "times": lambda u, x, c: u * x,
    "less": lambda u, x, c: (u < x).cast("f32") * u,
    "larger": lambda u, x, c: rc.where(u < x, x, u),
}
NOT_EMPTY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "softmax": lambda u, x, c: u.softmax(axis=0),
    "log_softmax": lambda u, x, c: u.log_softmax(axis=0),
}
REDUCE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda u, t: u.sum(axis=0),
    "discounted": lambda u, t: u.discounted_sum(0.8),
    "index": lambda u, t: u.index(1, axis=0),
    "at": lambda u, t: u.index(t, axis=0),
}
ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "max": lambda u, t: u.max(axis=0),
    "min": lambda u, t: u.min(axis=0),
    "argmax": lambda u, t: u.argmax(axis=0).cast("f32"),
    "all": lambda u, t: (u > 0.1).all(axis=0).cast("f32"),
}


def contractions(kind: str, u: Any, x: Any, row: Any, q: Any) -> Any:
    """Sums of products over the range."""
    match kind:
        case "row":
            return rc.einsum("a,ab->b", row, u)
        case "gram":
            return rc.einsum("ab,ac->bc", u, x.tanh()) * 0.5
        case "matmul":
            return x.transpose() @ u
        case _:
            return rc.einsum("a,ab->b", rc.einsum("b,ab->a", q, x).softmax(axis=0), u)


def written(
    read: str, steps: list[str], over_b: bool, reduce: str, einsum: str | None, grad: bool = True
) -> Graph:
    """A program: a range of x, functions of it, a reduction, perhaps a contraction and gradients."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, _), (t, T)):
        x = rc.input(rc.f32[2], domain=(t,), name="x")
        w = rc.input(rc.f32[()], domain=(b, t), name="w")
        span = {**READS, **EMPTY}[read](t, T)
        u = x[span]
        for f in steps:
            u = {**UNARY, **NOT_EMPTY}[f](u, x[span], w[b, t] if over_b else x[t])
        out = {"y": {**REDUCE, **ORDER}[reduce](u, t)}
        if einsum is not None:
            out["z"] = contractions(einsum, u, x[span], w[b, span], x[t])
        loss = sum(v.sum() for v in out.values())
        if grad and reduce in ("sum", "discounted", "index", "at", "max"):
            loss.backward(wrt=[x, w] if over_b or einsum == "row" else [x])
            out |= {f"d_{v.name}": v.grad for v in (x, w) if v.grad is not None}
        rc.output(**out)
    return verify(ctx.graph)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Any, ...]:
    """Arguments of `written`."""
    read = draw(st.sampled_from([*READS] * 2 + [*EMPTY]))
    steps = [*UNARY] if read in EMPTY else [*UNARY, *NOT_EMPTY]
    ends = [*REDUCE] if read in EMPTY else [*REDUCE, *ORDER]
    products = ["row", "gram", "matmul"] + ([] if read in EMPTY else ["attend"])
    chosen = draw(st.lists(st.sampled_from(steps), max_size=3))
    reduce, einsum = draw(st.sampled_from(ends)), draw(st.sampled_from([None, *products]))
    return read, chosen, draw(st.booleans()), reduce, einsum, draw(st.booleans())


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from(SIZES))
def test_random_programs(program: tuple[Any, ...], sizes: Mapping[str, int]) -> None:
    graph = written(*program)
    check(graph, sizes)
    small = verify(simplify(graph, sizes))
    same_answers(graph, small, sizes)
    same_answers(graph, check(small, sizes), sizes)
    lifted = verify(lift(small, sizes))
    same_answers(graph, check(lifted, sizes), sizes)
