"""Equations are called what the user calls them, and every handle follows."""

from __future__ import annotations

import numpy as np

import recurra as rc
from recurra import interp
from recurra.ir.graph import Ref


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
    assert kernel.name == layer.weight.name == layer.params[0].name == "kernel"
    assert before.name == alias.name == loss.name
    assert slope is not None
    assert layer.weight.grad is slope
    for x in (kernel, layer.bias, loss, slope, layer.bias.grad):
        assert x is not None
        assert x.name in ctx.tracer.nodes
        assert x.type == ctx.tracer.nodes[x.name].type
        assert repr(x).startswith("f32")


def test_a_name_that_is_free_again_is_another_equation() -> None:
    with rc.Context(dims="t") as ((t, _),):
        x = rc.input(rc.f32[()], (t,), "x")
        tracer, first = x.tracer, x + 1.0
        tracer.rename(first.name, "y")
        second = x + 2.0
        assert (first.name, second.name) == ("y", "add")
        tracer.rename(second.name, "z")
        tracer.rename("y", "w")
        third = x + 3.0
        assert (first.name, second.name, third.name) == ("w", "z", "add")
        assert first[t].ref == Ref("w", first.ref.index)
    assert (first.name, second.name, third.name) == ("first", "second", "third")


def test_a_program_goes_on_after_a_rename() -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, _),):
        x = rc.input(rc.f32[()], (t,), "x")
        y = rc.like(rc.f32[()], (t,))
        y[0] = x
        y.tracer.rename(y.name, "total")
        y[t] = y[t - 1] + x
        rc.output(y=y)
    out = interp.run(ctx.graph, {"T": 4}, {"x": np.arange(4.0, dtype="f4")})
    np.testing.assert_array_equal(out["y"], [0, 1, 3, 6])
