"""Reads by data: the nearest element where a position is not on the axis, refused on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from recurra.errors import DomainError, ShapeError
from recurra.reference import interpreter

BACKENDS = ("numpy", "jax", "torch")
POSITIONS = np.array([0, 2, 3, -1, 9, -7], np.int32)
NEAREST = [0, 2, 2, 0, 2, 0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["i32", "i8"])
def test_the_nearest_element_is_taken(backend: str, dtype: str):
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        k = rc.input(rc.i32, (t,), name="k")
        table = rc.constant([10.0, 20.0, 30.0])
        rows = rc.constant(np.arange(6.0).reshape(3, 2)) + rc.value(t)
        rc.output(one=table.take(k.cast(dtype)), row=rows.take(k, axis=0))
    one = [10.0 + 10.0 * p for p in NEAREST]
    row = np.array([[2 * p + n, 2 * p + 1 + n] for n, p in enumerate(NEAREST)])
    got = ctx.compile({T: 6}, backend=backend).run(inputs={"k": POSITIONS})
    for found in (got, interpreter.run(ctx.graph, {"T": 6}, {"k": POSITIONS})):
        np.testing.assert_array_equal(found["one"], one)
        np.testing.assert_array_equal(found["row"], row)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_go_to_the_element_that_is_taken(backend: str):
    """Also where the axis is a range of the past, whose end is another at every point."""
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        k = rc.input(rc.i32, (t,), name="k")
        x = rc.value(t) * 10.0
        y = x[0 : t + 1].take(k)
        y.backward(wrt=x)
        rc.output(y=y, g=x.grad)
    got = ctx.compile({T: 6}, backend=backend).run(inputs={"k": POSITIONS})
    places = np.clip(POSITIONS, 0, np.arange(6))
    np.testing.assert_array_equal(got["y"], places * 10.0)
    np.testing.assert_array_equal(got["g"], np.bincount(places, minlength=6))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_go_to_the_last_element_of_each_row_that_ends(backend: str):
    """One position for all rows, which are taken whole."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        x = rc.value(t) * 10.0 + rc.value(b) * 20.0
        one, two = rc.input(rc.i32, name="one"), rc.input(rc.i32[2], name="two")
        y = x[0:B, 0:T].take(one, axis=1).square().sum()
        z = x[0:B, 0:T].take(two, axis=1).sum()
        (y + z).backward(wrt=x)
        rc.output(y=y, dx=x.grad)
        end = rc.until(x >= 30.0, max=6)
    given = {"one": 2, "two": [0, 9]}
    got = ctx.compile({B: 2, T: end}, backend=backend).run(inputs=given)
    assert got["y"] == 20.0**2 + 30.0**2  # rows of 4 and of 2
    assert got["dx"].tolist() == [[1.0, 0.0, 40.0, 1.0, 0.0, 0.0], [1.0, 61.0, 0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_end_have_their_own_last_element(backend: str):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        x = rc.value(t) * 10.0 + rc.value(b) * 20.0
        k = rc.input(rc.i32, (b, t), name="k")
        y = x[b, 0:T].take(k)
        rest = x[b, t:T].take(k)
        end = rc.until(x >= 30.0, max=6)
        rc.output(y=y, rest=rest, length=rc.value(T))
    got = ctx.compile({B: 2, T: end}, backend=backend).run(inputs={"k": np.full((2, 6), 9, "i4")})
    assert got["length"].tolist() == [4.0, 2.0]
    want = [[30.0] * 4 + [0.0] * 2, [30.0] * 2 + [0.0] * 4]
    assert got["y"].tolist() == want
    assert got["rest"].tolist() == want


def test_positions_of_eight_bits_reach_what_they_can_and_no_more():
    """300 elements have no number of 8 bits: none of them is taken for another."""
    ctx = rc.Context(num_dims=0)
    with ctx:
        k = rc.constant(np.array([3, 255]), "u8")
        x = rc.constant(np.arange(300.0))
        y = x.take(k)
        y.sum().backward(wrt=x)
        rc.output(y=y, hot=k.one_hot(300), g=x.grad)
    got = ctx.run({}, backend="numpy")
    assert got["y"].tolist() == [3.0, 255.0]
    assert np.argwhere(got["hot"]).tolist() == [[0, 3], [1, 255]]
    assert np.argwhere(got["g"]).tolist() == [[3], [255]]


@pytest.mark.parametrize(
    ("k", "told"), [(3, "element 3"), (-1, "element -1"), ([0, 7], "element 7")]
)
def test_positions_that_are_written_are_refused(k: Any, told: str):
    ctx = rc.Context(num_dims=0)
    with ctx:
        rc.output(y=rc.constant([1.0, 2.0, 3.0]).take(k))
    with pytest.raises(ShapeError, match=f"{told} is not on its axis"):
        ctx.run({}, backend="numpy")


def test_positions_that_are_made_of_dims_are_refused():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        rc.output(y=rc.constant([1.0, 2.0, 3.0]).take(rc.value(t, "i32")))
    assert ctx.run({T: 3}, backend="numpy")["y"].tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ShapeError, match="at t=3 element 3 is asked of 0:3"):
        ctx.compile({T: 4})


# ---- check="bounds"


def checked() -> tuple[rc.Context, Any]:
    """Reads by data of a table, in a loop, and of a range whose length changes."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        w = rc.like(rc.f32, (i,))
        w[0] = 0.0
        w[i + 1] = w + 1.0
        k = rc.input(rc.i32[2], (t,), name="k")
        found = rc.constant([1.0, 2.0, 3.0]).take(k + w.cast("i32"))
        x = rc.value(t) * 1.0
        past = x[0 : t + 1].take(k.index(0))
        rc.output(found=found, past=past)
    return ctx, {I: 2, T: 3}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_check_finds_nothing_where_all_is_on_its_axis(backend: str):
    ctx, bounds = checked()
    k = {"k": np.array([[0, 1], [1, 0], [1, 1]], np.int32)}
    plain = ctx.compile(bounds, backend=backend).run(inputs=k)
    looked = ctx.compile(bounds, backend=backend, check="bounds").run(inputs=k)
    assert plain.keys() == looked.keys()
    for name, x in plain.items():
        np.testing.assert_array_equal(looked[name], x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_check_names_op_point_position_and_line(backend: str):
    ctx, bounds = checked()
    program = ctx.compile(bounds, backend=backend, check="bounds")
    with pytest.raises(DomainError) as e:
        program.run(inputs={"k": np.array([[0, 1], [1, 2], [1, 1]], np.int32)})
    text = str(e.value)
    assert text.startswith("found takes element 3 of an axis of 3 at i=1, t=1\n  --> test_take.py:")
    assert "found = rc.constant([1.0, 2.0, 3.0]).take(k + w.cast" in text
    assert "the index is add_2[i,t], element [1]" in text
    with pytest.raises(DomainError, match="past takes element 1 of an axis of 1 at t=0"):
        program.run(inputs={"k": np.array([[1, 0], [1, 0], [0, 1]], np.int32)})
    with pytest.raises(DomainError, match="found takes element -1 of an axis of 3 at i=0, t=2"):
        program.run(inputs={"k": np.array([[0, 0], [0, 0], [0, -1]], np.int32)})


def test_the_check_finds_the_end_of_a_row():
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        x = rc.value(t) * 10.0 + rc.value(b) * 20.0
        k = rc.input(rc.i32, (b, t), name="k")
        end = rc.until(x >= 30.0, max=6)
        rc.output(y=x[b, 0:T].take(k))
    program = ctx.compile({B: 2, T: end}, check="bounds", backend="numpy")
    inside = np.where(np.arange(2)[:, None], 1, 3) * np.ones((2, 6), np.int32)
    assert program.run(inputs={"k": inside})["y"][0, 0] == 30.0
    past = np.full((2, 6), 3, np.int32)
    with pytest.raises(DomainError, match="y takes element 3 of an axis of 2 at b=1, t=0"):
        program.run(inputs={"k": past})


def test_there_are_two_checks():
    ctx, bounds = checked()
    with pytest.raises(rc.errors.RecurraError, match="there are 'nan' and 'bounds'"):
        ctx.compile(bounds, check="index")


@pytest.mark.parametrize("backend", BACKENDS)
def test_written_places_off_the_axis_are_left_out_of_slopes_too(backend: str):
    ctx = rc.Context(num_dims=0)
    with ctx:
        x, v = rc.constant([1.0, 2.0, 3.0]), rc.constant([7.0, 8.0])
        y = x.scatter(0, [0, 5], v)
        y.square().sum().backward(wrt=[x, v])
        rc.output(y=y, dx=x.grad, dv=v.grad)
    got = ctx.run({}, backend=backend)
    assert got["y"].tolist() == [7.0, 2.0, 3.0]
    assert got["dx"].tolist() == [0.0, 4.0, 6.0]
    assert got["dv"].tolist() == [14.0, 0.0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("reduce", "theirs"), [("add", "sum"), ("min", "amin"), ("max", "amax")])
def test_values_of_one_place_are_joined_as_in_torch(backend: str, reduce: Any, theirs: str):
    """Equals share the gradient; places off the axis are left out."""
    rng = np.random.default_rng(0)
    x0, v0 = (rng.integers(0, 3, shape).astype("f4") for shape in ((4, 3), (5, 3)))
    at, weight = rng.integers(-1, 6, (5, 3), "i4"), rng.standard_normal((4, 3), "f4")
    tx, tv = (torch.tensor(z, requires_grad=True) for z in (x0, v0))
    places = torch.tensor(np.where((at >= 0) & (at < 4), at, 4)).long()
    room = torch.cat([tx, torch.zeros(1, 3)])
    want = room.scatter_reduce(0, places, tv, theirs)[:4]
    (want * torch.tensor(weight)).sum().backward()

    ctx = rc.Context(num_dims=0)
    with ctx:
        x, v = rc.constant(x0), rc.constant(v0)
        y = x.scatter(0, at, v, reduce=reduce)
        (y * weight).sum().backward(wrt=[x, v])
        rc.output(y=y, dx=x.grad, dv=v.grad)
    got = ctx.run({}, backend=backend)
    np.testing.assert_array_equal(got["y"], want.detach().numpy())
    np.testing.assert_allclose(got["dx"], tx.grad, rtol=1e-6)
    np.testing.assert_allclose(got["dv"], tv.grad, rtol=1e-6)
