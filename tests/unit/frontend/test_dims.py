"""Dims are what they are declared to be, whatever they are called."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import recurra as rc
from example_programs import EXAMPLES, read_example
from recurra.analysis.bound_values import bounds_of
from recurra.compiler.pipeline import Compiled, compile_graph
from recurra.errors import RecurraError, ShapeError
from recurra.ir.dims import Dim, Role
from recurra.ir.graph import Graph
from recurra.ir.graph_parser import parse
from recurra.ir.types import Range
from recurra.ir.verify import verify
from renamed import awkward, renamed

SLOW = [pytest.param(b, marks=pytest.mark.slow) for b in ("jax", "torch")]

# ---- declarations

MADE = """
dims t<T, tz<T//8 tiles of t, te<8 points of tz, 1<=t_<T adjoint of t, s<3 rounds of l
x[tz<T//8,te<8]: f32[] = uniform(id=1, counter=(tz, te))
return x
""".strip()


def test_the_text_says_what_a_dim_is() -> None:
    graph = parse(MADE)
    assert str(graph) == MADE
    assert parse(str(verify(graph))) == graph
    assert graph.declared["te"] == Dim(Range("te", 8), Role.POINTS, "tz")
    assert graph.halves("t") == (graph.declared["tz"], graph.declared["te"])
    assert graph.halves("l") is None
    assert (graph.first_of("t_"), graph.adjoints("t")) == ("t", ("t_",))


@pytest.mark.parametrize("dims", ["t<T, te<8 tens of t", "t<T, te<8 written of t"])
def test_a_dim_has_one_of_the_roles(dims: str) -> None:
    with pytest.raises(SyntaxError, match="a dim is adjoint, tiles, "):
        parse(f"dims {dims}\nx: f32[] = const(value=1.0)\nreturn x")


def test_every_dim_is_declared() -> None:
    with pytest.raises(ShapeError, match="x is over b, which is no dim") as e:
        verify(parse("dims t<T\nx[b<B,t<T]: f32[] = const(value=1.0)\nreturn x"))
    assert "dims t, b<B" in str(e.value)


def test_a_new_dim_has_a_name_of_its_own() -> None:
    graph = parse("dims t<tz, tru<4\nx[t<tz]: f32[] = input(dtype='f32')\nreturn x")
    outer = graph.fresh_dim(Role.TILES, "t", 2)
    assert outer == Dim(Range("tz_", 2), Role.TILES, "t")
    assert graph.fresh_dim(Role.POINTS, outer.name, 4, stem="t").name == "te"
    assert graph.fresh_dim(Role.POINTS, "tru", 4).name == "true_"  # a word of the text
    assert graph.fresh_dim(Role.PREFIX, "t", 4, taken={"tp"}).name == "tp_"


@pytest.mark.parametrize("name", ["in", "and", "AND", "infinity", "inf"])
def test_words_are_no_names(name: str) -> None:
    with pytest.raises(RecurraError, match=f"no dim or bound can be called '{name}'"):
        rc.Context(dims=name).__enter__()


# ---- programs that are called as passes call theirs


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("names", ["t u v", "t tz te"])
def test_dims_beside_an_end_are_no_tiles(names: str, backend: str) -> None:
    ctx = rc.Context(dims=names)
    with ctx as ((t, T), (u, U), (v, V)):
        x = rc.like(rc.f32, domain=(t,))
        x[0] = 1.0
        x[t + 1] = x * 2.0
        end = rc.until(x >= 8.0, max=64)
        last = x[T - 1]
        w = rc.like(rc.f32, domain=(u,))
        w[0] = last
        w[u + 1] = w + 1.0
        rc.output(w=w, last=last, s=rc.uniform((v,))[0:V].sum())
    found = ctx.run({T: end, U: 12, V: 4}, backend=backend)
    assert found["last"] == 8
    assert found["w"].tolist() == [8.0 + k for k in range(12)]


@pytest.mark.parametrize("names", ["z e", "z k", "e z"])
def test_an_order_is_found_along_any_dim(names: str) -> None:
    ctx = rc.Context(dims=names)
    with ctx as ((a, A), (b, B)):
        x = rc.like(rc.f32, domain=(a, b))
        x[a, 0] = 1.0
        x[a, b + 1] = x * 1.5
        rc.output(x=x)
    found = ctx.run({A: 2, B: 4}, backend="numpy")
    assert found["x"].tolist() == [[1.0, 1.5, 2.25, 3.375]] * 2


@pytest.mark.parametrize("names", ["e m z", "z m e", "tz t te"])
def test_epochs_of_minibatches_are_no_tiles(names: str) -> None:
    def learned(names: str) -> Any:
        ctx = rc.Context(dims=names)
        with ctx as ((e, E), (m, M), (n, N)):
            W = rc.nn.Parameter(rc.constant(0.5), domain=((e, m),), name="W")
            loss = (rc.uniform((m, n)) * W - 1.0).square()[e, m, 0:N].mean()
            loss.backward(wrt=[W])
            rc.optim.SGD([W], lr=0.1).step()
            rc.output(W=W)
        return ctx.run({E: 2, M: 3, N: 2}, backend="numpy")["W"]

    np.testing.assert_array_equal(learned(names), learned("e m n"))


@pytest.mark.parametrize("backend", ["numpy", *SLOW])
def test_a_dim_or_bound_may_be_called_as_the_seed_is(backend: str) -> None:
    def drawn(dims: str, bound: str) -> dict[str, np.ndarray]:
        ctx = rc.Context(dims=dims)
        with ctx as ((a, A), (b, B), (t, T)):
            u = rc.uniform((a, t), (2,))
            x = rc.like(rc.f32[2], domain=(a, t))
            x[a, 0] = u
            x[a, t] = x[a, t - 1] + u
            last = rc.min(t + rc.bound(bound), T)
            rc.output(u=u, x=x, k=rc.randint(0, 99, (b,)), s=u[a, t:last].sum())
        bounds = {A: 3, B: 4, T: 5, bound: 2}
        return ctx.compile(bounds, backend=backend).run(seed=7)

    want = drawn("a b t", "N")
    for dims, bound in (("seed b t", "N"), ("a b seed", "run"), ("a inputs t", "seed")):
        np.testing.assert_equal(drawn(dims, bound), want)


def test_workers_join_whatever_dims_are_called() -> None:
    def total(dims: str) -> np.ndarray:
        ctx = rc.Context(dims=dims)
        with ctx as ((b, B), (t, T)):
            rc.output(s=rc.uniform((b, t))[0:B, t].sum())
        return ctx.compile({B: 4, T: 3}, backend="numpy", workers=2).run()["s"]

    np.testing.assert_array_equal(total("b join"), total("b t"))


def test_a_loop_back_has_a_clock_of_its_own() -> None:
    def sums(names: str) -> Any:
        ctx = rc.Context(dims=names)
        with ctx as ((t, T), (s, S)):
            x = rc.like(rc.f32, domain=(t, s))
            x[T - 1, s] = 1.0 * s
            x[t, 0] = 2.0 * t
            x[t, s] = x[t + 1, s] + x[t, s - 1]
            rc.output(x=x)
        return ctx.run({T: 3, S: 4}, backend="numpy", min_skew_gain=np.inf)["x"]

    np.testing.assert_array_equal(sums("t t_back"), sums("a b"))
    np.testing.assert_array_equal(sums("t t_end"), sums("a b"))


# ---- the examples, renamed

SIZES = {"ppo": {"B": 4, "I": 2, "E": 2, "M": 4, "N": 6, "T": 6}}


@cache
def example(name: str) -> Graph:
    found = read_example(name)
    return found["ctx"].graph


def as_before(was: Compiled, now: Compiled, names: dict[str, str]) -> dict[str, str]:
    """The names of the first program for those of the second, which has as many of each kind."""
    old, new = was.plan.graph, now.plan.graph
    assert [d.role for d in old.dims] == [d.role for d in new.dims]
    assert len(old.nodes) == len(new.nodes)
    back = {v: k for k, v in names.items() if k in bounds_of(old)}
    back |= dict(zip(new.declared, old.declared, strict=True))
    return back | {f"equation {x}": y for x, y in zip(new.nodes, old.nodes, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_names_decide_nothing(name: str) -> None:
    """Graph, loops and stores are the same but for names."""
    graph = example(name)
    sizes = SIZES.get(name) or {b: 4 + 2 * (k > 0) for k, b in enumerate(bounds_of(graph))}
    names = awkward(graph, seed=len(name))
    other = verify(renamed(graph, names))
    assert parse(str(other)) == other
    was = compile_graph(graph, sizes)
    now = compile_graph(other, {names.get(k, k): n for k, n in sizes.items()})
    back = as_before(was, now, names)
    assert renamed(now.plan.graph, back) == was.plan.graph
    new = {n: back[f"equation {n}"] for n in now.plan.graph.nodes}
    assert {new[n]: [a.kind for a in s.axes] for n, s in now.plan.stores.items()} == {
        n: [a.kind for a in s.axes] for n, s in was.plan.stores.items()
    }
    assert list(now.schedule.places().values()) == list(was.schedule.places().values())
