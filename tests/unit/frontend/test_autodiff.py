"""Gradients through every way to read a tensor, against finite differences in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzzing import drawn_at_length
from programs import backpropagate, check_gradients, draws, finished, run, tracing
from programs import given as input
from recurra.errors import RecurraError
from recurra.frontend import functions as rc
from recurra.frontend.dims import maximum, minimum, wrap
from recurra.frontend.nn.modules import Parameter
from recurra.frontend.optim import Adam
from recurra.ir.types import Type

B, T, K = 2, 6, 3
BOUNDS = {"B": B, "T": T, "K": K, "I": 3}


def bound(name: str) -> Any:
    from recurra.ir.expr import Sym

    return wrap(Sym(name))


# name: (dims, source's dims, the value read at every point of the dims)
READS: dict[str, tuple[str, str, Any]] = {
    "x": ("t", "t", lambda x, t: x),
    "x[t]": ("t", "t", lambda x, t: x[t]),
    "x[t-1]": ("t", "t", lambda x, t: rc.where(t >= 1, x[t - 1], 0.0)),
    "x[t+3]": ("t", "t", lambda x, t: rc.where(t < bound("T") - 3, x[t + 3], 0.0)),
    "x[0]": ("t", "t", lambda x, t: x[0]),
    "x[-1]": ("t", "t", lambda x, t: x[-1]),
    "x[T-2]": ("t", "t", lambda x, t: x[bound("T") - 2]),
    "x[T-1-t]": ("t", "t", lambda x, t: x[bound("T") - 1 - t]),
    "x[0:T]": ("t", "t", lambda x, t: x[0 : bound("T")].cumsum()[2]),
    "x[0:t+1]": ("t", "t", lambda x, t: x[0 : t + 1].discounted_sum(0.7)),
    "x[0:t]": ("t", "t", lambda x, t: x[0:t].sum()),
    "x[t:T]": ("t", "t", lambda x, t: x[t : bound("T")].discounted_sum(0.7)),
    "x[max(t-3,0):t+1]": ("t", "t", lambda x, t: x[maximum(t - 3, 0) : t + 1].discounted_sum(0.7)),
    "x[t:min(t+5,T)]": (
        "t", "t", lambda x, t: x[t : minimum(t + 5, bound("T"))].discounted_sum(0.7)),
    "softmax over x[0:t+1]": ("t", "t", lambda x, t: (x[0 : t + 1].softmax() * x[0 : t + 1]).sum()),
    "x[t//4]": ("t", "t", lambda x, t: x[t // 4]),
    "x[t%4]": ("t", "t", lambda x, t: x[t % 4]),
    "x[max(t-3,0)]": ("t", "t", lambda x, t: x[maximum(t - 3, 0)]),
    "x[min(t+2,T-1)]": ("t", "t", lambda x, t: x[minimum(t + 2, bound("T") - 1)]),
    "x[2*k]": ("kt", "t", lambda x, k, t: x[2 * k]),
    "x[2*k+1]": ("kt", "t", lambda x, k, t: x[2 * k + 1]),
    "x[2*k:2*k+2]": ("kt", "t", lambda x, k, t: x[2 * k : 2 * k + 2].discounted_sum(0.7)),
    "x[min(4*k,T):min(4*k+4,T)]": (
        "kt", "t",
        lambda x, k, t: x[minimum(4 * k, bound("T")) : minimum(4 * k + 4, bound("T"))].sum()),
    "x[t//4*4:t+1]": ("t", "t", lambda x, t: x[t // 4 * 4 : t + 1].discounted_sum(0.7)),
    "x[0:T:2]": ("t", "t", lambda x, t: x[0 : bound("T") : 2].discounted_sum(0.7)),
    "x[t:T:2]": ("t", "t", lambda x, t: x[t : bound("T") : 2].discounted_sum(0.7)),
    "x[1:t+1:3]": (
        "t", "t", lambda x, t: rc.where(t >= 1, x[1 : maximum(t, 1) + 1 : 3].sum(), 0.0)),
    "parameter x[] at (b,t)": ("bt", "", lambda x, b, t: x),
    "x[b] at (b,t)": ("bt", "b", lambda x, b, t: x),
    "x[b,t-1]": ("bt", "bt", lambda x, b, t: rc.where(t >= 1, x[b, t - 1], 0.0)),
    "x[b,t:T]": ("bt", "bt", lambda x, b, t: x[b, t : bound("T")].discounted_sum(0.7)),
    "x[0:B,t]": ("bt", "bt", lambda x, b, t: x[0 : bound("B"), t].discounted_sum(0.7)),
    "x[0:B,0:t+1]": (
        "bt", "bt",
        lambda x, b, t: x[0 : bound("B"), 0 : t + 1].discounted_sum(0.7).discounted_sum(0.8)),
    "x[0,t]": ("bt", "bt", lambda x, b, t: x[0, t]),
    "x[min(t,B-1),t]": ("bt", "bt", lambda x, b, t: x[minimum(t, bound("B") - 1), t]),
    "x[b,b+t]": ("bt", "bt", lambda x, b, t: rc.where(b + t < bound("T"), x[b, b + t], 0.0)),
    "x[b+t]: no box": ("bt", "t", lambda x, b, t: rc.where(b + t < bound("T"), x[b + t], 0.0)),
    "x[t-b]": ("bt", "t", lambda x, b, t: rc.where(t >= b, x[t - b], 0.0)),
    "x[b+t:T]": (
        "bt", "t", lambda x, b, t: x[minimum(b + t, bound("T")) : bound("T")].discounted_sum(0.7)),
    "x[t//2] over k": ("kt", "k", lambda x, k, t: x[t // 2]),
    "x[t,t]": ("st", "st", lambda x, s, t: x[t, t]),
    "x[t,s]: transposed": ("st", "st", lambda x, s, t: x[t, s]),
    "x[s,0:s+1]": ("st", "st", lambda x, s, t: x[s, 0 : s + 1].discounted_sum(0.7)),
    "twice": ("t", "t", lambda x, t: x * x[0] + x[t]),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_every_read(name: str) -> None:
    dims, source, read = READS[name]
    bounds = {**BOUNDS, "S": T}

    def build(idx: Any, xs: Any) -> Any:
        y = read(xs["x"] * 1.5, *idx)  # of what is computed, points that nobody reads are left out
        return y.tanh() * xs["w"] + y.square()

    sizes = [bounds[d.upper()] for d in source]
    weights = draws(*(bounds[d.upper()] for d in dims), seed=1)
    check_gradients(
        build, dims, bounds, {"x": draws(*sizes), "w": weights}, {"x": source, "w": dims}
    )


def test_values_with_axes() -> None:
    """Ranges lead the axes of the value: x[b, t:T] of f64[3] is [T-t, 3]."""

    def build(idx: Any, xs: Any) -> Any:
        b, t = idx
        future = xs["x"][b, t : bound("T")]
        return (future * xs["w"]).sum(axis=0).max() + (xs["x"] @ xs["w"]).tanh()

    inputs = {"x": draws(B, T, 3), "w": draws(3)}
    check_gradients(build, "bt", BOUNDS, inputs, {"x": "bt"})


def test_merge_of_two_and_three() -> None:
    def build(idx: Any, xs: Any) -> Any:
        (t,) = idx
        x, y = rc.like(Type("f64"), (t,)), rc.like(Type("f64"), (t,))
        x[0] = xs["a"]
        x[t + 1] = xs["c"] * xs["a"]
        y[t % 3 == 0] = x
        y[t % 3 == 1] = x.square() * xs["c"]
        y[t >= 0] = x[t - 1] * x  # the rest: the first true one wins
        return y.sin()

    check_gradients(build, "t", BOUNDS, {"a": draws(), "c": draws(T, seed=3)}, {"c": "t"})


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_overhang(shift: int) -> None:
    """x[t+c] = e drops what falls outside."""

    def build(idx: Any, xs: Any) -> Any:
        (t,) = idx
        x = rc.like(Type("f64"), (t,))
        x[t + shift] = xs["e"].sin()
        x[t >= 0] = xs["a"]
        return x * xs["e"]

    check_gradients(build, "t", BOUNDS, {"e": draws(T), "a": draws()}, {"e": "t"})


def test_recurrences_forwards_and_backwards() -> None:
    """Back-propagation through time; a return that runs from the end; two that need each other."""

    def build(idx: Any, xs: Any) -> Any:
        b, t = idx
        h, g, v = (rc.like(Type("f64"), (b, t), n) for n in "hgv")
        h[b, 0] = xs["h0"]
        h[b, t + 1] = (h * xs["w"] + v).tanh()
        v[b, t] = h * xs["x"]
        g[b, -1] = xs["x"][b, -1]
        g[b, t] = xs["x"] + 0.9 * g[b, t + 1]
        return h * g

    inputs = {"h0": draws(B), "w": draws(), "x": draws(B, T)}
    check_gradients(build, "bt", BOUNDS, inputs, {"h0": "b", "x": "bt"})


def test_second_order_recurrence_over_two_dims() -> None:
    def build(idx: Any, xs: Any) -> Any:
        b, t = idx
        x = rc.like(Type("f64"), (b, t))
        x[0, t] = xs["a"] * xs["e"]
        x[b, 0] = xs["a"]
        x[b, t] = (x[b - 1, t] + xs["e"] * x[b, t - 1]).tanh()
        return x[-1, -1] * x

    check_gradients(build, "bt", {"B": 3, "T": 4}, {"a": draws(), "e": draws(4)}, {"e": "t"})


def test_attention() -> None:
    """Causal, over the keys and values so far."""

    def build(idx: Any, xs: Any) -> Any:
        (t,) = idx
        q, k, v = ((xs["x"] @ xs[n]) for n in ("q", "k", "v"))
        scores = rc.einsum("sd,d->s", k[0 : t + 1], q)
        return rc.einsum("s,sd->d", scores.softmax(), v[0 : t + 1]).sum()

    inputs = {"x": draws(T, 2), **{n: draws(2, 2, seed=k) for k, n in enumerate("qkv")}}
    check_gradients(build, "t", BOUNDS, inputs, {"x": "t"}, rtol=1e-5)


def test_take_by_data_and_where() -> None:
    def build(idx: Any, xs: Any) -> Any:
        logp = xs["x"].log_softmax().take(xs["a"])
        return rc.where(logp < -1.0, logp * xs["w"], logp.exp())

    inputs = {"x": draws(T, 4), "w": draws(), "a": np.array([0, 3, 1, 1, 2, 0], np.int32)}
    check_gradients(build, "t", BOUNDS, inputs, {"x": "t", "a": "t"})


def test_detach_stops_and_integers_have_no_gradient() -> None:
    def build(idx: Any, xs: Any) -> Any:
        return xs["x"].detach() * xs["y"]

    g = backpropagate(build, "t", BOUNDS, {"x": draws(T), "y": draws(T)}, {"x": "t", "y": "t"})
    np.testing.assert_array_equal(g.values["x"], np.zeros(T))
    np.testing.assert_allclose(g.values["y"], draws(T))


def test_gradient_of_one_point() -> None:
    """x[2].backward() is the gradient of x[2], not of all of x."""

    def build(idx: Any, xs: Any) -> Any:
        return (xs["x"] * xs["x"])[2]

    g = check_gradients(build, "t", BOUNDS, {"x": draws(T)}, {"x": "t"})
    assert np.count_nonzero(g.values["x"]) == 1


def test_one_tensor_as_wrt_and_two_backwards() -> None:
    with tracing("t") as (builder, (t,)):
        x = input(Type("f64"), (t,), "x")
        (x * x).backward(wrt=x)
        first = x.grad
        (x * x * x).backward(wrt=[x])
        rc.output(first=first, second=x.grad)
        out = run(builder, BOUNDS, {"x": draws(T)})
    np.testing.assert_allclose(out["first"], 2 * draws(T))
    np.testing.assert_allclose(out["second"], 3 * draws(T) ** 2)


def test_gradient_of_a_gradient() -> None:
    def build(idx: Any, xs: Any) -> Any:
        (t,) = idx
        x = xs["x"]
        (x[0 : t + 1].sum().sin()).backward(wrt=x)
        return x.grad.square()

    check_gradients(build, "t", BOUNDS, {"x": draws(T)}, {"x": "t"}, rtol=1e-5)


def test_a_range_of_its_own() -> None:
    """Over L+1 points where the reader has L."""
    from recurra.frontend.tensor import RecurrentTensor
    from recurra.ir.expr import Sym
    from recurra.ir.graph import Ref
    from recurra.ir.types import Domain, Range

    def build(idx: Any, xs: Any) -> Any:
        (t,) = idx
        builder = xs["m"].builder
        node = builder.declare("x", Domain((Range("t", Sym("T") + 1),)), Type("f64"))
        x = RecurrentTensor(builder, Ref(node.name, node.domain.identity))
        x[0] = xs["a"]
        x[t + 1] = (x[t] * xs["m"]).tanh()
        return x[t + 1] * x[bound("T")] + x[t]

    check_gradients(build, "t", BOUNDS, {"a": draws(), "m": draws(T)}, {"m": "t"})


# ---- learning over a third dim


def rnn_in_jax(w: Any, u: Any, x: Any) -> Any:
    h, total = jnp.zeros((x.shape[0], w.shape[0])), 0.0
    for t in range(x.shape[1]):
        h = jnp.tanh(h @ w + x[:, t] @ u)
        total = total + jnp.sum(h**2 * (t + 1.0))
    return total / x.shape[0]


def adam_in_jax(w: Any, u: Any, x: Any, steps: int, lr: float) -> list[Any]:
    p = {"w": w, "u": u}
    m = v = jax.tree.map(jnp.zeros_like, p)
    trace = [p]
    for i in range(1, steps):
        g = jax.grad(lambda p: rnn_in_jax(p["w"], p["u"], x))(p)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        a, b = 1 - 0.9**i, 1 - 0.999**i
        step = jax.tree.map(lambda m, v, a=a, b=b: lr * (m / a) / (jnp.sqrt(v / b) + 1e-8), m, v)
        p = jax.tree.map(jnp.subtract, p, step)
        trace.append(p)
    return trace


@pytest.mark.slow
def test_learning_an_rnn_is_jax_on_the_unrolled_program() -> None:
    w0, u0, x0 = draws(3, 3) * 0.5, draws(2, 3), draws(B, 4, 2)
    with tracing("ibt") as (builder, (i, b, t)):
        w = Parameter(rc.constant(w0, "f64"), (i,), "W")
        u = Parameter(rc.constant(u0, "f64"), (i,), "U")
        x = input(Type("f64", (2,)), (b, t), "x")
        h = rc.like(Type("f64", (3,)), (i, b, t), "h")
        h[t == 0] = (x @ u).tanh()
        h[t > 0] = (h[i, b, t - 1] @ w + x @ u).tanh()
        loss = (h.square() * (t + 1.0)).sum()
        total = loss[i, 0 : bound("B"), 0 : bound("T")].sum(axis=1).mean()
        total.backward()
        Adam([w, u], lr=1e-2).step()
        rc.output(w=w, u=u, loss=total)
        out = run(builder, {"I": 4, "B": B, "T": 4}, {"x": x0})
    with jax.enable_x64(True):
        trace = adam_in_jax(jnp.asarray(w0), jnp.asarray(u0), jnp.asarray(x0), 4, 1e-2)
        losses = [float(rnn_in_jax(p["w"], p["u"], jnp.asarray(x0))) for p in trace]
        np.testing.assert_allclose(out["w"], np.stack([p["w"] for p in trace]), rtol=1e-9)
        np.testing.assert_allclose(out["u"], np.stack([p["u"] for p in trace]), rtol=1e-9)
    np.testing.assert_allclose(out["loss"], losses, rtol=1e-9)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("through", [False, True])
def test_parameters_are_leaves_unless_asked(through: bool) -> None:
    """p[i+1] = 0.5 · p[i]: with updates followed, all of the p that come from a p count."""
    with tracing("i") as (builder, (i,)):
        p = Parameter(rc.constant(2.0, "f64"), (i,), "p")
        p.update(p * 0.5)
        (p * 3.0).backward(wrt=[p], through_updates=through)
        rc.output(g=p.grad)
        out = run(builder, {"I": 4})
    want = [3.0 * sum(0.5**k for k in range(4 - i)) for i in range(4)] if through else [3.0] * 4
    np.testing.assert_allclose(out["g"], want)


# ---- mistakes


def test_a_loss_has_no_axes() -> None:
    with tracing("t") as (_, (t,)):
        x = input(Type("f32", (3,)), (t,), "x")
        with pytest.raises(RecurraError) as e:
            x.backward(wrt=[x])
    assert "backward() needs a scalar loss" in str(e.value)
    assert "test_autodiff.py" in str(e.value)
    assert "f32[3] over (t)" in str(e.value)


def test_a_loss_depends_on_a_parameter() -> None:
    with tracing("t") as (_, (t,)):
        x, y = input(Type("f32"), (t,), "x"), input(Type("f32"), (t,), "y")
        with pytest.raises(RecurraError) as e:
            (x.detach() * 2.0).backward(wrt=[x, y])
    assert "the loss does not depend on any parameter" in str(e.value)
    assert "parameters: x, y" in str(e.value)


# ---- random programs

DOMAINS = {"x": "t", "s": "bt", "c": "", "v": "b"}
POINTS = {
    "b": {"b": lambda b, t: b, "0": lambda b, t: 0, "B-1-b": lambda b, t: bound("B") - 1 - b,
          "0:B": lambda b, t: slice(0, bound("B")), "b:B": lambda b, t: slice(b, bound("B"))},
    "t": {
        "t": lambda b, t: t, "0": lambda b, t: 0, "T-1": lambda b, t: bound("T") - 1,
        "T-1-t": lambda b, t: bound("T") - 1 - t, "t//2": lambda b, t: t // 2,
        "t%3": lambda b, t: t % 3, "max(t-1,0)": lambda b, t: maximum(t - 1, 0),
        "min(t+2,T-1)": lambda b, t: minimum(t + 2, bound("T") - 1),
        "min(b+t,T-1)": lambda b, t: minimum(b + t, bound("T") - 1), "b": lambda b, t: b,
        "max(t-b,0)": lambda b, t: maximum(t - b, 0),
        "0:t+1": lambda b, t: slice(0, t + 1), "t:T": lambda b, t: slice(t, bound("T")),
        "0:T": lambda b, t: slice(0, bound("T")),
        "max(t-2,0):t+1": lambda b, t: slice(maximum(t - 2, 0), t + 1),
        "t:min(t+3,T)": lambda b, t: slice(t, minimum(t + 3, bound("T"))),
        "t//2*2:t+1": lambda b, t: slice(t // 2 * 2, t + 1),
        "b:T:2": lambda b, t: slice(b, bound("T"), 2),
    },
}  # fmt: skip
FOLDS = {
    "sum": lambda y: y.sum(axis=0),
    "mean": lambda y: y.mean(axis=0),
    "discounted": lambda y: y.discounted_sum(0.6),
    "max": lambda y: y.max(axis=0),
    "softmax": lambda y: (y.softmax(axis=0) * y).sum(axis=0),
    "cumsum": lambda y: y.cumsum().square().sum(axis=0),
}
JOINS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "tanh": lambda a, b: (a - b).tanh(),
    "maximum": lambda a, b: rc.maximum(a, b * 0.9),
    "div": lambda a, b: a / (b.square() + 1.0),
    "where": lambda a, b: rc.where(a < b, a, b.sin()),
}


@st.composite
def reads(draw: Any, sources: dict[str, str]) -> tuple[str, tuple[str, ...], str]:
    name = draw(st.sampled_from(sorted(sources)))
    index = tuple(draw(st.sampled_from(sorted(POINTS[d]))) for d in sources[name])
    return name, index, draw(st.sampled_from(sorted(FOLDS)))


@st.composite
def programs(draw: Any) -> list[Any]:
    """Lines (name, kind, join, read, read): y = join(a, b), a recurrence on it, or a branch."""
    sources, lines = dict(DOMAINS), list[Any]()
    for k in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["plain", "branch", "forwards", "overhang", "backwards"]))
        join = draw(st.sampled_from(sorted(JOINS)))
        lines.append((f"y{k}", kind, join, draw(reads(sources)), draw(reads(sources))))
        sources[f"y{k}"] = "bt"
    return lines


def written(lines: list[Any], idx: Any, xs: Any) -> Any:
    b, t = idx
    full = rc.value(b + t, "f64") * 0.0  # makes every e vary with b and t
    env = dict(xs)

    def value(read: Any) -> Any:
        name, index, fold = read
        x = env[name]
        dims = x.graph[x.name].domain.dims
        y = x[tuple(POINTS[d][e](b, t) for d, e in zip(dims, index, strict=True))] if dims else x
        for _ in range(len(y.shape)):
            y = FOLDS[fold](y).tanh()  # tame, or finite differences mean nothing
        return y

    for name, kind, join, first, second in lines:
        e = JOINS[join](value(first), value(second)) + full
        y = env[name] = rc.like(Type("f64"), (b, t), name)
        match kind:
            case "forwards":
                y[b, 0] = e[b, 0]
                y[b, t] = (e + y[b, t - 1]).tanh()
            case "overhang":
                y[b, 0] = xs["c"]
                y[b, t + 1] = (e * y).sin()
            case "backwards":
                y[b, -1] = xs["v"]
                y[b, t] = (e + y[b, t + 1]).tanh()
            case "branch":
                y[(b + t) % 2 == 0] = xs["c"]
                y[b, t] = e
            case _:
                y[b, t] = e
    last = env[lines[-1][0]]
    return last.square() + sum((env[n] for n, *_ in lines[:-1]), start=last)


def check_program(lines: list[Any], seed: int) -> None:
    bounds = {"B": 2, "T": 4}
    inputs = {
        n: draws(*(bounds[d.upper()] for d in dims), seed=seed) for n, dims in DOMAINS.items()
    }
    g = backpropagate(lambda idx, xs: written(lines, idx, xs), "bt", bounds, inputs, DOMAINS)
    way = {n: draws(*x.shape, seed=seed + 9) for n, x in inputs.items()}
    h = 1e-5
    up, down = ({n: x + k * way[n] for n, x in inputs.items()} for k in (h, -h))
    want = (g.total(up) - g.total(down)) / (2 * h)
    got = sum(float(np.sum(g.values[n] * way[n])) for n in inputs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6, err_msg=str(g.graph))


PAST_THE_END = [("y0", "plain", "add", ("c", (), "cumsum"), ("s", ("b:B", "b"), "cumsum"))]


@pytest.mark.slow
@settings(max_examples=60)
@given(programs(), st.integers(0, 3))
@example(PAST_THE_END, 0)  # s[b:B,b] has no reader at t >= B, nor B - t elements
def test_random_programs(lines: list[Any], seed: int) -> None:
    check_program(lines, seed)


@drawn_at_length()
@given(programs(), st.integers(0, 9))
def test_many_random_programs(lines: list[Any], seed: int) -> None:
    check_program(lines, seed)


def test_the_finished_graph_is_text() -> None:
    with tracing("t") as (builder, (t,)):
        x = input(Type("f64"), (t,), "x")
        x[t : bound("T")].sum().square().backward(wrt=x)
        rc.output(g=x.grad)
        text = str(finished(builder))
    assert "d_x[t<T]" in text
    assert "0:t+1" in text
