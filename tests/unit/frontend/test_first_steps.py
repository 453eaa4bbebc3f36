"""What a newcomer writes first: it works, or the error says what to write."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import DomainError, RecurraError, ShapeError
from recurra.ir.graph import Graph
from recurra.ir.graph_parser import parse
from recurra.reference import interpreter

BACKENDS = ["numpy", "jax", "torch"]


def oracle(ctx: rc.Context, bounds: dict[str, int]) -> dict[str, Any]:
    graph, logs = ctx.graph, ctx.builder.logs
    found = interpreter.run(Graph(graph.nodes, tuple(logs.values()), graph.dims), bounds)
    return {name: found[equation] for name, equation in logs.items()}


def test_a_dtype_is_a_scalar_type():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.like(rc.f64, domain=(t,))
        x[0] = rc.input(rc.f64, name="first")
        x[t + 1] = x * 2
        rc.output(x=x)
        with pytest.raises(RecurraError, match="no type\n"):
            rc.like((4,), domain=(t,))
    found = ctx.compile({T: 3}, backend="numpy").run(inputs={"first": 1.0})
    np.testing.assert_array_equal(found["x"], [1, 2, 4])


def test_a_context_of_one_dim_gives_its_pair_both_ways():
    for ctx in (rc.Context(num_dims=1), rc.Context(dims="t")):
        with ctx as (t, T):
            rc.output(x=rc.value(t))
        with ctx as ((t, T),):
            rc.output(y=rc.value(t))
        found = ctx.run({T: 2}, backend="numpy")
        np.testing.assert_array_equal(found["x"], found["y"])
    scope = {"rc": rc}
    exec("with rc.Context(dims='t') as (t, T): pass", scope)  # of which there is no source
    assert str(scope["T"]) == "T"
    with rc.Context(num_dims=1) as (time, N):
        assert (str(time), str(N)) == ("time", "N")


def test_a_context_has_the_dims_that_it_is_named_for():
    with rc.Context() as (t, T):
        assert (str(t), str(T)) == ("t", "T")
    with rc.Context() as ((b, B), (s, S)):
        assert [str(x) for x in (b, B, s, S)] == ["b", "B", "s", "S"]
    with rc.Context(dims=["e", "i"]) as ((e, E), (i, I)):
        assert [str(x) for x in (e, E, i, I)] == ["e", "E", "i", "I"]
    with rc.Context():
        rc.output(x=rc.constant(1.0))


def test_pairs_without_source_are_counted():
    program = "with rc.Context(num_dims=3) as ((b, B), (t, T)):\n    pass"
    with pytest.raises(RecurraError, match="a context of 3 dims gives 3 pairs, and 2 names"):
        exec(program, {"rc": rc})
    two: dict[str, Any] = {"rc": rc}
    exec("with rc.Context() as ((b, B), (t, T)):\n    x = rc.value(t)", two)
    assert two["x"].builder.dim_names() == ("i", "t")


def test_elements_of_elements_are_points_of_what_has_a_name():
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.like(rc.f32[2, 2], domain=(t,))
        x[t] = rc.constant([[1.0, 2.0], [3.0, 4.0]]) * rc.value(t)
        row = x[t][1]
        rows = [x[t][k] for k in range(2)]
        rc.output(element=x[t][1, 0], point=row[2], listed=rows[0][1], before=x[t][1][t])
    got = ctx.run({T: 3}, backend="numpy")
    assert got["element"].tolist() == [0, 3, 6]
    assert got["point"].tolist() == [6, 8]
    assert got["listed"].tolist() == [1, 2]
    assert got["before"][1].tolist() == [3, 4]


def test_parameters_without_a_name_and_distances_of_dims():
    ctx = rc.Context(dims="i")
    with ctx as (i, I):
        w = rc.nn.Parameter(2.0, domain=(i,))
        (w - 1.0).square().backward()
        rc.optim.SGD([w], lr=0.25).step()
        rc.output(w=w, far=abs(i - 1))
    assert w.name == "w"
    got = ctx.run({I: 3}, backend="numpy")
    assert got["w"].tolist() == [2.0, 1.5, 1.25]
    assert got["far"].tolist() == [1, 0, 1]


def test_there_are_as_many_pairs_as_dims():
    three, named = rc.Context(num_dims=3), rc.Context(dims="b t")
    with pytest.raises(RecurraError, match="hint: write num_dims=2"):  # noqa: SIM117
        with three as ((b, B), (t, T)):
            del b, B, t, T
    hint = re.escape("hint: write `as ((b, B), (t, T)):`")
    with pytest.raises(RecurraError, match=hint):  # noqa: SIM117 — a line of the user's own
        with named as ((b, B),):
            del b, B


def test_pairs_without_brackets_of_their_own():
    ctx = rc.Context(num_dims=2)
    hint = re.escape("hint: write `with ctx as ((i, I), (t, T)):`")
    i = I = t = T = None
    with pytest.raises(RecurraError, match=hint):  # noqa: SIM117
        with ctx as (i, I), (t, T):  # pyright: ignore
            del i, I, t, T


def test_bounds_are_named_as_the_user_names_them():
    ctx = rc.Context(num_dims=2)
    with ctx as ((time, N), (k, _)):
        rc.output(x=rc.value(time) + rc.value(k))
    with pytest.raises(DomainError, match="its bounds are N, K; given: N=3"):
        ctx.run({N: 3})
    with pytest.raises(DomainError, match="time is a dim, no bound") as e:
        ctx.run({time: 3, "K": 2})
    assert "hint: give the bound: N: 3" in str(e.value)
    assert ctx.run({N: 3, "K": 2}, backend="numpy")["x"].shape == (3, 2)


def test_what_decides_the_axes_is_told_where_it_decides():
    ctx = rc.Context(num_dims=1)
    with ctx as ((b, B),):
        rc.output(mean=rc.value(b)[0:B].mean())
    decisions = ctx.compile({B: 3}, backend="numpy").compiled.stages.decisions
    assert decisions
    assert not [d for d in decisions if "layers" in d]


def test_equations_are_named_after_their_outputs():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.value(t) * 2.0
        rc.log(mean_return=x[0:T].mean() / 3.0)
        rc.output(twice=x)
        rc.output(**{"t": x + 1.0, "per cent": x * 100.0, "class": x[T - 1 - t]})
    names = dict(ctx.builder.logs)
    assert {names.pop(k) for k in ("t", "per cent", "class")} == {"add", "mul", "output"}
    assert set(names.values()) == {"mean_return", "x"}
    assert str(parse(str(ctx.graph))) == str(ctx.graph)
    assert {"mean_return", "x"} <= set(ctx.graph.nodes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_maximum_and_minimum_of_tensors(backend: str):
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.value(t)
        rc.output(a=rc.maximum(x, 1.0), b=rc.minimum(1.0, x), c=rc.maximum(t, x - 1.0))
        with pytest.raises(DomainError, match=r"hint: for tensors there are rc\.maximum"):
            rc.max(x, 0)
    found = ctx.run({T: 3}, backend=backend)
    np.testing.assert_array_equal(found["a"], [1, 1, 2])
    np.testing.assert_array_equal(found["b"], [0, 1, 1])
    np.testing.assert_array_equal(found["c"], [0, 1, 2])


class Counter:
    """Adds how often it was called: the order of calls shows."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        return x * 10 + self.calls


def counted(batched: bool) -> rc.Context:
    ctx, counter = rc.Context(num_dims=3), Counter()
    with ctx as ((b, B), (i, I), (t, T)):
        x = rc.like(rc.f32[2], domain=(b, i, t))
        x[b, i, 0] = rc.value(i)
        y = rc.call(counter, rc.f32[2], x[b, i, t], batch=(b,) if batched else ())
        x[b, i, t + 1] = y * 0.5
        rc.output(x=x, y=y)
    return ctx


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_host_calls_are_made_in_order(backend: str, batched: bool):
    bounds = {"B": 2, "I": 3, "T": 4}
    want = oracle(counted(batched), bounds)
    found = counted(batched).run(bounds, backend=backend)
    for name in want:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-6)
    calls = (found["y"] - found["x"] * 10)[..., 0]
    order = np.arange(1, 13) if batched else np.arange(1, 25)
    np.testing.assert_allclose(calls[0].ravel(), order[:12], atol=0.05)
    np.testing.assert_allclose(calls[-1].ravel(), order[-12:], atol=0.05)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pure_host_calls_have_no_order(backend: str):
    def both(x: np.ndarray) -> tuple[Any, Any]:
        return x + 1, x > 1

    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        u, v = rc.call(both, (rc.f32, rc.boolean), rc.value(t), pure=True)
        w, _ = rc.call(both, (rc.f32, rc.boolean), u, pure=True)
        rc.output(u=u, v=v, w=w)
    assert "token" not in str(ctx.graph)
    found = ctx.run({T: 3}, backend=backend)
    np.testing.assert_array_equal(found["u"], [1, 2, 3])
    np.testing.assert_array_equal(found["v"], [False, False, True])
    np.testing.assert_array_equal(found["w"], [2, 3, 4])


def test_host_calls_that_do_not_fit_are_refused():
    ctx, counter = rc.Context(num_dims=1), Counter()
    with ctx as ((t, T),):
        rc.output(y=rc.call(counter, rc.f32[3], rc.value(t)))
        with pytest.raises(RecurraError, match="called at two places"):
            rc.call(counter, rc.f32[3], rc.value(t))
    with pytest.raises(ShapeError, match=r"Counter gives an array of shape \(\)"):
        ctx.run({T: 2}, backend="numpy")


def test_a_program_may_be_written_in_several_blocks() -> None:
    ctx = rc.Context(num_dims=2)
    with ctx as ((a, A), (t, T)):
        x = rc.value(t) + rc.value(a)
    with ctx:
        rc.output(y=x * 2)
    assert ctx.run({A: 2, T: 2})["y"].tolist() == [[0, 2], [2, 4]]


def test_a_program_keeps_the_names_of_its_dims() -> None:
    ctx = rc.Context(num_dims=1)

    def again() -> None:
        with ctx as ((s, S),):  # the names are read in this line
            pass

    with ctx as ((t, T),):  # and in this one
        pass
    with pytest.raises(RecurraError, match="called t"):
        again()


@pytest.mark.parametrize("backend", BACKENDS)
def test_conditions_and_ranges_in_the_places_of_dims(backend: str):
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        every_third = rc.like(rc.f32, domain=(b, t))
        every_third[b, t % 3 == 0] = 1.0
        every_third[b >= 1, t] = 2.0
        every_third[b, t] = 3.0
        ramp = rc.like(rc.f32, domain=(b, t))
        ramp[b, 0:3] = [5.0, 6.0, 7.0]
        ramp[b, -1:] = -1.0
        ramp[b, t] = ramp[b, t - 1] * 10.0
        grid = rc.like(rc.f32[2], domain=(b, t))
        grid[0:2, ::2] = [[[1.0, 2.0]], [[3.0, 4.0]]]
        grid[0, 1:4] = [8.0, 9.0]
        grid[:, :] = 0.0
        rc.output(every_third=every_third, ramp=ramp, grid=grid)
    assert oracle(ctx, {"B": 2, "T": 5}).keys() == {"every_third", "ramp", "grid"}
    want = np.zeros((2, 5, 2))
    want[0, 1:4] = [8, 9]
    want[:, ::2] = [[[1, 2]], [[3, 4]]]
    found = ctx.run({B: 2, T: 5}, backend=backend)
    np.testing.assert_array_equal(found["every_third"], [[1, 3, 3, 1, 3], [1, 2, 2, 1, 2]])
    np.testing.assert_array_equal(found["ramp"], [[5, 6, 7, 70, -1]] * 2)
    np.testing.assert_array_equal(found["grid"], want)
    short = ctx.run({B: 2, T: 2}, backend=backend)
    np.testing.assert_array_equal(short["ramp"], [[5, 6]] * 2)
    if backend == "numpy":
        with ctx, pytest.raises(DomainError, match="t\\+1"):
            rc.like(rc.f32, domain=(b, t))[b, t : t + 1] = 1.0


def test_what_is_made_prints_what_it_is():
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.value(t) * rc.zeros(3)
        rc.output(x=x)
        assert [repr(v) for v in (rc.f32, rc.boolean, rc.f32[4, T], rc.i32[()])] == [
            "rc.f32", "rc.boolean", "rc.f32[4,T]", "rc.i32[()]",
        ]  # fmt: skip
        assert [repr(v) for v in (b, T, t + 1, x)] == ["b", "T", "t+1", "f32[3] over (t)"]
    assert repr(ctx) == 'rc.Context(dims="b t") of 4 equations, gives x'
    program = ctx.compile({B: 2, T: 3}, backend="numpy")
    assert repr(program).startswith("program for B=2, T=3\n")
