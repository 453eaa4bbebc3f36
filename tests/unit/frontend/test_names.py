"""Equations are called what the user calls them, and every handle follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.analysis.safety import check_safety
from recurra.errors import RecurraError
from recurra.ir.graph import Graph, Ref
from recurra.reference import interpreter


def test_handles_follow_the_names_of_variables() -> None:
    ctx = rc.Context(dims="i t")
    with ctx as ((i, _), (t, _)):
        layer = rc.nn.Linear(2, 3, (i,))
        kernel = layer.weight
        x = rc.input(rc.f32[2], (i, t), "x")
        loss = layer(x).square().sum()
        before, alias = loss, loss
        loss[i, 0].backward(wrt=layer.params)
        slope = kernel.grad
        rc.output(y=loss)
    assert kernel.name == layer.weight.name == layer.params[0].name == "W"  # as the layer calls it
    assert before.name == alias.name == loss.name
    assert slope is not None
    assert layer.weight.grad is slope
    for x in (kernel, layer.bias, loss, slope, layer.bias.grad):
        assert x is not None
        assert x.name in ctx.builder.nodes
        assert x.type == ctx.builder.nodes[x.name].type
        assert repr(x).startswith("f32")


def test_a_name_that_is_free_again_is_another_equation() -> None:
    with rc.Context(dims="t") as ((t, _),):
        x = rc.input(rc.f32[()], (t,), "x")
        builder, first = x.builder, x + 1.0
        builder.rename({first.name: "y"})
        second = x + 2.0
        assert (first.name, second.name) == ("y", "add")
        builder.rename({second.name: "z"})
        builder.rename({"y": "w"})
        third = x + 3.0
        assert (first.name, second.name, third.name) == ("w", "z", "add")
        assert first[t].ref == Ref("w", first.ref.index)
    assert (first.name, second.name, third.name) == ("first", "second", "third")


def test_an_input_takes_the_name_that_a_declared_tensor_gives_up() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,))
        h = rc.like(rc.f32, (t,))  # called x until it is known to be h
        h[0] = x[0]
        h[t] = h[t - 1] + x
        rc.output(h=h)
    assert (x.name, h.name) == ("x", "h")
    program = ctx.compile({T: 3}, backend="numpy")
    assert program.run(inputs={"x": np.ones(3, "f4")})["h"].tolist() == [1.0, 2.0, 3.0]


def test_an_input_has_the_name_of_its_variable_whatever_else_was_called_so() -> None:
    def smooth(given: Any) -> Any:
        state = rc.like(rc.f32, (t,))  # of no variable where the context ends: called x
        state[0] = given[0]
        state[t] = 0.5 * state[t - 1] + 0.5 * given
        return state.sqrt()

    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x, value = rc.input(rc.f32, (t,)), rc.input(rc.f32)
        rc.output(y=smooth(x) * rc.value(t) + value)
    program = ctx.compile({T: 2}, backend="numpy")
    assert set(program.inputs) == {"x", "value"}
    given = {"x": np.array([4.0, 28.0], "f4"), "value": np.array(1.0, "f4")}
    assert program.run(inputs=given)["y"].tolist() == [1.0, 5.0]


def test_a_program_goes_on_after_a_rename() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, _),):
        x = rc.input(rc.f32[()], (t,), "x")
        y = rc.like(rc.f32[()], (t,))
        y[0] = x
        y.builder.rename({y.name: "total"})
        y[t] = y[t - 1] + x
        rc.output(y=y)
    out = interpreter.run(ctx.graph, {"T": 4}, {"x": np.arange(4.0, dtype="f4")})
    np.testing.assert_array_equal(out["y"], [0, 1, 3, 6])


def learner(step: Callable[[rc.nn.MLP], None]) -> Graph:
    """A network of two layers over i, one step of learning, and its weights."""
    ctx = rc.Context(dims="i t")
    with ctx as ((i, _), (t, T)):
        dnn = rc.nn.MLP([2, 3, 1], (i,))
        x = rc.input(rc.f32[2], (i, t), "x")
        dnn(x)[i, 0:T].square().mean().backward()
        step(dnn)
        rc.output(w=dnn.params[0])
    return ctx.graph


def test_parameters_and_their_state_are_named_after_them() -> None:
    graph = learner(lambda dnn: rc.optim.Adam(dnn.params).step())
    for p in ("W1", "b1", "W2", "b2"):
        assert {p, f"{p}_next", f"d_{p}", f"{p}_m", f"{p}_v"} <= graph.nodes.keys()
        assert [a.name for a in graph[p].args][1] == f"{p}_next"
        assert [a.name for a in graph[f"{p}_m"].args][1] == f"{p}_m_next"
        assert graph[f"d_{p}"].op.name in ("sum", "einsum")
    assert len(graph.nodes) == len({n.name for n in graph.nodes.values()})


def test_a_value_that_has_a_name_keeps_it() -> None:
    ctx = rc.Context(dims="i")
    with ctx as ((i, _),):
        start = rc.input(rc.f32[()], (), "start")
        w = rc.nn.Parameter(start, (i,), "w")
        better = w * 0.5
        w.update(better)
        y = rc.like(rc.f32[()], (i,))
        y[i] = better
        z = rc.like(rc.f32[()], (i,))
        z[i] = w + 1.0
        rc.output(y=y, z=z)
    graph = ctx.graph
    assert [a.name for a in graph["w"].args] == ["start", "better"]
    assert str(graph["y"].op.name) == "merge"
    assert graph["z"].op.name == "add"
    out = interpreter.run(graph, {"I": 3}, {"start": np.float32(4.0)})
    np.testing.assert_array_equal(out["y"], [2, 1, 0.5])
    np.testing.assert_array_equal(out["z"], [5, 3, 2])


def test_a_frozen_parameter_is_constant() -> None:
    ctx = rc.Context(dims="i")
    with ctx as ((i, _),):
        w = rc.nn.Parameter(rc.constant(3.0), (i,), "w")
        v = rc.nn.Parameter(rc.constant(2.0), (i,), "v")
        (w * v).square().backward()
        rc.optim.SGD([v], lr=0.01).step()
        rc.output(w=w, v=v)
    check_safety(ctx.graph, {"I": 3})
    out = interpreter.run(ctx.graph, {"I": 3})
    np.testing.assert_array_equal(out["w"], [3, 3, 3])
    assert out["v"][0] > out["v"][1] > out["v"][2]


def test_parameters_over_several_dims_are_trained_along_the_last() -> None:
    ctx = rc.Context(dims="s i")
    with ctx as ((s, _), (i, _)):
        w = rc.nn.Parameter(rc.value(s + 1), (s, i), "w")
        (w * w)[s, i].backward()
        rc.optim.SGD([w], lr=0.25).step()
        rc.output(w=w)
    check_safety(ctx.graph, {"S": 2, "I": 3})
    out = interpreter.run(ctx.graph, {"S": 2, "I": 3})
    np.testing.assert_array_equal(out["w"], [[1, 0.5, 0.25], [2, 1, 0.5]])


def test_a_parameter_over_no_dim_has_no_next_value() -> None:
    with rc.Context(num_dims=0):
        w = rc.nn.Parameter(rc.constant(3.0), (), "w")
        (w * w).backward()
        for optimizer in (rc.optim.SGD, rc.optim.Adam):
            with pytest.raises(RecurraError, match="w cannot be updated") as e:
                optimizer([w], lr=0.1).step()
            assert "give it one: domain=(i,)" in str(e.value)


@pytest.mark.parametrize("dims", ["min t", "exists t", "b-c t", "t t", "β t", "t é"])
def test_names_of_dims_that_cannot_be(dims: str):
    with pytest.raises(RecurraError, match="no dim or bound can be called"):
        rc.Context(dims=dims).__enter__()


@pytest.mark.parametrize("name", ["mod", "in", "ñ", "t", "two words"])
def test_names_of_bounds_that_cannot_be(name: str):
    with rc.Context(dims="t"), pytest.raises(RecurraError, match="a bound cannot be called"):
        rc.bound(name)


def test_the_name_of_an_input_is_the_one_it_is_given() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        obs = rc.input(rc.f32, (t,), name="z")
        rest = rc.input(rc.f32, (t,))
        rc.output(y=obs * 2.0 + rest)
    ones = np.ones(3, np.float32)
    assert (
        ctx.run({T: 3}, inputs={"z": ones, "rest": ones}, backend="numpy")["y"].tolist() == [3] * 3
    )


def test_inputs_in_a_dict_have_its_keys() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        given = {"a": rc.input(rc.f32, (t,)), "b": rc.input(rc.f32, (t,)), "no word": T}
        rc.output(y=given["a"] - given["b"])
    ones = np.ones(3, np.float32)
    y = ctx.run({T: 3}, inputs={"b": ones, "a": 3 * ones}, backend="numpy")["y"]
    assert y.tolist() == [2.0] * 3
