"""Compiled programs as a user meets them: inputs, resuming, the shapes of outputs, refusals."""

from pathlib import Path

import numpy as np
import pytest

import recurra as rc
from recurra.errors import RecurraError, ShapeError
from recurra.frontend.nn.modules import Parameter

BACKENDS = ["numpy", "jax", "torch"]


def running_sum():
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        x = rc.input(rc.f32[2], (b, t), name="x")
        w = rc.input(rc.f32[2], name="w")
        y = rc.like(rc.f32[2], domain=(b, t))
        y[b, 0] = x[b, 0]
        y[b, t + 1] = y * w
        rc.output(y=y, s=x[b, 0 : t + 1].sum())
    return ctx, {B: 2, T: 3}


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_are_given_by_name(backend: str):
    ctx, bounds = running_sum()
    x = np.arange(12.0).reshape(2, 3, 2)
    found = ctx.compile(bounds, backend=backend).run(inputs={"x": x, "w": [1.0, 2.0]})
    np.testing.assert_array_equal(found["y"][:, 2], x[:, 0] * [1, 4])
    np.testing.assert_array_equal(found["s"], x.sum(axis=2).cumsum(axis=1))


def test_missing_and_misshaped_inputs_are_refused():
    ctx, bounds = running_sum()
    program = ctx.compile(bounds, backend="numpy")
    with pytest.raises(RecurraError, match="the program reads the inputs w, x"):
        program.run()
    with pytest.raises(ShapeError, match=r"the input w has the shape \(3,\)"):
        program.run(inputs={"x": np.zeros((2, 3, 2)), "w": np.zeros(3)})


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_output_has_its_own_length_where_reads_of_it_are_padded(backend: str):
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.value(t).square()
        rc.output(x=x, y=x[t : rc.min(t + 3, T)].sum())
    found = ctx.run({T: 6}, backend=backend)
    np.testing.assert_array_equal(found["x"], np.arange(6.0) ** 2)
    np.testing.assert_array_equal(found["y"], [5, 14, 29, 50, 41, 25])


def test_an_element_off_its_axis_is_refused():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        d = rc.constant(np.arange(6.0))
        rc.output(x=d[t])
    np.testing.assert_array_equal(ctx.run({T: 6}, backend="numpy")["x"], np.arange(6.0))
    with pytest.raises(ShapeError) as e:
        ctx.compile({T: 9})
    assert str(e.value).splitlines()[2:] == [
        "  the axis is 0:6; at t=6 element 6 is asked of 0:6",
        "  hint: index within 0:6, or guard it with rc.where",
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_resumed_run_computes_what_stands_before_its_main_loop(backend: str):
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        w = Parameter(rc.constant(0.1), (i,), "w")
        x = rc.like(rc.f32[()], domain=(i, t))
        x[i, 0] = rc.constant(1.0)
        x[i, t + 1] = x * w
        loss = (x - 0.9**t).square()[i, 0:T].mean()  # 0.9**t does not vary with i
        loss.backward()
        rc.optim.SGD([w], lr=0.05).step()
        rc.log(loss=loss)
    program = ctx.compile({I: 40, T: 16}, backend=backend, launch_steps=8)
    states = {}
    whole = program.run(
        on_state=lambda s: states.update({s.hi: {k: np.array(v) for k, v in s.variables.items()}})
    )
    rest = program.run(resume=(16, states[16]))
    np.testing.assert_array_equal(rest["loss"], whole["loss"][16:])


def test_floats_are_not_cut_off_to_integers():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        rc.output(y=rc.input(rc.i32[()], (t,), name="n") + 1)
    program = ctx.compile({T: 3}, backend="numpy")
    with pytest.raises(RecurraError, match="the input n has a value that i32 cannot hold"):
        program.run(inputs={"n": np.array([1.5, 2.0, 3.0])})
    np.testing.assert_array_equal(program.run(inputs={"n": [1, 2, 3]})["y"], [2, 3, 4])


def test_shapes_are_numbers_or_tuples():
    ctx = rc.Context(num_dims=0)
    with ctx:
        x = rc.constant(np.arange(6.0, dtype="f4").reshape(2, 3))
        rc.output(a=x.reshape((3, -1)), b=x.reshape(3, 2), c=x.transpose((1, 0)), d=x.transpose())
    found = ctx.run({}, backend="numpy")
    np.testing.assert_array_equal(found["a"], found["b"])
    np.testing.assert_array_equal(found["c"], found["d"])


def test_one_equation_has_every_name_that_is_logged():
    ctx = rc.Context(num_dims=1)
    with ctx as ((i, I),):
        x = rc.like(rc.f32, domain=(i,))
        x[0] = 1.0
        x[i + 1] = x * 2.0
        rc.log(a=x - 1.0, b=x - 1.0)
    seen: list[float] = []
    program = ctx.compile({I: 3}, backend="numpy")
    program.run(on_step=lambda lo, told: seen.extend([*told["a"], *told["b"]]))
    np.testing.assert_array_equal(sorted(seen), [0, 0, 1, 1, 3, 3])


def test_compile_and_run_at_once_takes_what_run_takes(tmp_path: Path):
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.input(rc.f32, (t,), name="x")
        y = x * 2.0
        rc.log(y=y)
    given = {"x": np.arange(3, dtype=np.float32)}
    folder = tmp_path / "run"
    got = ctx.run({T: 3}, inputs=given, folder=folder, backend="numpy")
    assert got["y"].tolist() == [0.0, 2.0, 4.0]
    assert (folder / "report.html").exists()
    native = ctx.run({T: 3}, inputs=given, native=True, backend="torch")["y"]
    assert type(native).__module__ == "torch"


def test_a_mistake_of_ours_is_not_told_as_a_word_that_there_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A property that raises AttributeError inside is there all the same."""
    ctx, bounds = running_sum()
    program = ctx.compile(bounds, backend="numpy")
    monkeypatch.setattr(type(program), "source", property(lambda self: self.sizes.nothing))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        print(program.source)
