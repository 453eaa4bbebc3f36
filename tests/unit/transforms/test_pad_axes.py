"""pad: every element of the program keeps its value, and padding holds what is claimed of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from recurra.errors import RecurraError
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph
from recurra.ir.graph_parser import parse
from recurra.ir.op import Op
from recurra.ir.types import Type
from recurra.ir.verify import verify
from recurra.reference import equivalence
from recurra.reference.interpreter import Oracle, points
from recurra.storage.verifier import validate
from recurra.transforms.canonicalize.canonicalize import canonicalize
from recurra.transforms.padding.pad_axes import pad, pad_with_fills
from recurra.transforms.padding.padded_axes import Unknown
from recurra.transforms.padding.rules import rule_of
from recurra.transforms.recurrences.incrementalize import lift

SIZES = ({"B": 2, "T": 5}, {"B": 3, "T": 3}, {"B": 1, "T": 1})


def check(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Pads, and compares every equation at every point with the program's."""
    after, fills = pad_with_fills(graph, sizes)
    verify(after)
    assert parse(str(after)) == after
    assert pad(after, sizes) == after
    dims = set(graph.declared)
    for n in after.nodes.values():
        assert isinstance(n.type, Type)
        assert not set().union(*map(symbols, n.type.shape)) & dims, n
    same_answers(graph, after, sizes)
    data = equivalence.random_inputs(graph, sizes)
    old, new = Oracle(graph, sizes, data, 3), Oracle(after, sizes, data, 3)
    with np.errstate(all="ignore"):
        for name in after.nodes.keys() & graph.nodes.keys():
            for point in points(after, name, sizes):
                compare(name, old.value(name, point), new.value(name, point), fills.get(name, ()))
    return after


def same_answers(before: Graph, after: Graph, sizes: Mapping[str, int]) -> None:
    """Outputs are compared by position: a pass may hand one to an equal equation."""
    data = equivalence.random_inputs(before, sizes)
    order = [before[o].domain.dims for o in before.outputs]
    want, have = (
        equivalence.evaluate_outputs(g, sizes, order, equivalence.as_written(g), data)
        for g in (before, after)
    )
    different = equivalence.difference(before, sizes, want, have)
    assert different is None, f"{different}\n{after}"


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
    "centered": lambda u, x, c: u - u.sum(axis=0) * 0.5,
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
    """A range of x, functions of it, a reduction, perhaps a contraction and gradients."""
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


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(programs(), st.sampled_from(SIZES))
def test_random_programs(program: tuple[Any, ...], sizes: Mapping[str, int]) -> None:
    graph = written(*program)
    check(graph, sizes)
    small = verify(canonicalize(graph, sizes))
    same_answers(graph, small, sizes)
    same_answers(graph, check(small, sizes), sizes)
    lifted = verify(lift(small, sizes))
    same_answers(graph, check(lifted, sizes), sizes)


PATTERNS = [
    (["log", "times"], "sum", "row"),
    (["inverse", "times", "flip"], "discounted", "matmul"),
    (["exp", "cumsum", "copied"], "at", "gram"),
    (["chosen", "centered", "scale"], "index", "row"),
    (["turned", "twice", "larger"], "sum", None),
    (["cos", "share", "square"], "discounted", "gram"),
]


@pytest.mark.parametrize("read", [*READS, *EMPTY])
@pytest.mark.parametrize("k", range(len(PATTERNS)))
def test_every_range_with_its_gradients(read: str, k: int) -> None:
    steps, reduce, einsum = PATTERNS[k]
    graph = written(read, steps, k % 2 == 0, reduce, einsum)
    for sizes in SIZES[k % 2 :: 2]:
        same_answers(graph, check(canonicalize(graph, sizes), sizes), sizes)


@pytest.mark.slow
def test_learning_through_causal_attention() -> None:
    """A key cache, a softmax over the past, a loss over windows ahead: values and gradients."""
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f32[3], domain=(b, t), name="x")
        r = rc.input(rc.f32[()], domain=(b, t), name="r")
        wk = rc.input(rc.f32[3, 2], name="wk")
        wq = rc.input(rc.f32[3, 2], name="wq")
        key, query = x @ wk, (x @ wq) * 0.7
        near = slice(rc.max(t - 2, 0), t + 1)
        full = rc.einsum("d,kd->k", query, key[b, 0 : t + 1]).softmax()
        part = rc.einsum("d,kd->k", query, key[b, near]).log_softmax()
        out = rc.einsum("k,kd->d", full, key[b, 0 : t + 1]) + rc.einsum(
            "k,kd->d", part.exp(), x[b, near] @ wq
        )
        g = r[b, t : rc.min(t + 3, T)].discounted_sum(0.9)
        best = part.max() + out.sum() * g
        loss = best[0:B, 0:T].mean()
        loss.backward(wrt=[wk, wq, x])
        rc.output(loss=loss, dk=wk.grad, dq=wq.grad, dx=x.grad)
    graph = verify(ctx.graph)
    for sizes in SIZES:
        check(graph, sizes)
        small = canonicalize(graph, sizes)
        same_answers(graph, check(small, sizes), sizes)
        same_answers(graph, check(lift(small, sizes), sizes), sizes)


# ---- refusals

REFUSED = {
    "the output y has a length that changes with a dim": """
        x[t<T]: f32[] = input(dtype='f32')
        y[t<T]: f32[t+1] = exp(x[0:t+1])
        return y""",
    "input: it cannot take an axis whose length changes with a dim": """
        x[t<T]: f32[t+1] = input(dtype='f32', shape=(t+1,))
        y[t<T]: f32[] = sum(x, axes=(0,))
        return y""",
    "foreign: it cannot take an axis whose length changes with a dim": """
        x[t<T]: f32[] = input(dtype='f32')
        y[t<T]: f32[] = foreign(x[0:t+1], fn='f', out=0, dtype='f32', shape=())
        return y""",
    "windows: its windows would reach into the padding": """
        x[t<T]: f32[] = input(dtype='f32')
        w[t<T]: f32[1,t+1] = windows(x[0:t+1], axis=0, sizes=(1,), strides=(1,))
        y[t<T]: f32[] = sum(w, axes=(0, 1))
        return y""",
    "call: the results of a call cannot have a length": """
        x[t<T]: f32[] = input(dtype='f32')
        c[t<T]: (f32[t+1]) = call(x, fn='f', results=(('f32', (t+1,)),))
        return x""",
    "sum: the elements of u[0:T] have different lengths, t+1": """
        x[t<T]: f32[] = input(dtype='f32')
        u[t<T]: f32[t+1] = exp(x[0:t+1])
        y: f32[t+1] = sum(u[0:T], axes=(0,))
        z: f32[] = sum(y, axes=(0,))
        return z""",
    "merge: a recurrence cannot carry a length that changes with a dim": """
        x[t<T]: f32[] = input(dtype='f32')
        m[t<T]: f32[T-t] = merge(x[t:T], n, when=(t == 0, t > 0))
        n[t<T]: f32[T-t] = add(c, x[t:T])
        c[t<T]: f32[T-t] = cut(m[t-1], axis=0, start=0, size=T-t)
        y[t<T]: f32[] = sum(m, axes=(0,))
        return y""",
    "reshape: f32[2,t+1] and f32[2*t+2] share no leading axis": """
        x[t<T]: f32[] = input(dtype='f32')
        w: f32[2] = input(dtype='f32', shape=(2,))
        u[t<T]: f32[2,t+1] = mul(w, x[0:t+1], labels='a,b->ab')
        v[t<T]: f32[2*t+2] = reshape(u, shape=(2*t+2,))
        y[t<T]: f32[] = sum(v, axes=(0,))
        return y""",
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    with pytest.raises(RecurraError) as e:
        pad(parse("dims t<T\n" + REFUSED[what]), {"T": 4})
    assert str(e.value).startswith(what)


def test_windows_of_each_row() -> None:
    """A convolution of every row that a range reads, and back."""
    graph = parse("""dims t<T
x[t<T]: f32[5] = input(dtype='f32', shape=(5,))
w[t<T]: f32[t+1,3,2] = windows(x[0:t+1], axis=1, sizes=(3,), strides=(2,))
v[t<T]: f32[t+1,5] = overlap(w, axis=1, sizes=(3,), strides=(2,), lengths=(5,))
y[t<T]: f32[3,2] = sum(w, axes=(0,))
z[t<T]: f32[5] = sum(v, axes=(0,))
return y, z""")
    check(graph, {"T": 4})


@pytest.mark.parametrize("more", ["", ", equal=True"])
def test_a_search_of_a_range_that_grows(more: str) -> None:
    """What is past the end lies below nothing."""
    graph = parse(f"""dims t<T
x[t<T]: f32[] = uniform(id=1, counter=(t,))
v[t<T]: f32[] = uniform(id=2, counter=(t,))
s[t<T]: f32[t+1] = cumsum(x[0:t+1], axis=0)
k[t<T]: i32[] = searchsorted(s, v, labels='a,->', axis='a'{more})
return k""")
    check(graph, {"T": 4})


def test_every_op_has_a_rule_or_refuses() -> None:
    without = {name for name, op in Op.registry.items() if rule_of(op) is None}
    after = {"allreduce", "samples"}  # of *shard* and *fetch*, which run later
    assert without - after == {"data", "foreign", "input", "item", "merge"}  # see pad_axes.py


def test_a_refusal_names_the_users_line() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, _),):
        x = rc.input(rc.f32[()], domain=(t,), name="x")
        wide = x[0 : t + 1].expand(2, axis=0)
        rc.output(y=wide.reshape((t + 1) * 2).sum())
    with pytest.raises(RecurraError, match=r"test_pad_axes.py:\d+ +rc.output\(y=wide.reshape"):
        pad(ctx.graph, {"T": 4})


def test_a_store_without_room_for_padding_is_found() -> None:
    """A range of three at the last point is read to its end, two places behind the store's last."""
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.like(rc.f32, (t,), name="x")
        x[0] = 1.0
        x[t] = (x[t - 1] * 1.5).sin()
        y = rc.like(rc.f32, (t,))
        y[T - 1] = x
        y[t] = y[t + 1] * x[t : rc.min(t + 3, T)].max()
        rc.output(y=y)
    plan = ctx.compile({T: 6}, backend="numpy").compiled.plan
    assert validate(plan) == []
    stored = plan.stores["x"]
    (axis,) = stored.kept
    assert axis.slots == 6 + 2
    short = replace(stored, axes=(replace(axis, slots=7),))
    wrong = validate(replace(plan, stores={**plan.stores, "x": short}))
    assert wrong[0] == "x_masked reads 5:8 of 7 places of x[t:min(t+3,T):pad(3)]"
