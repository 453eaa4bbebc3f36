"""check="nan": the op, the point and the line that made a NaN or inf that reaches a result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra import cli
from recurra.errors import NotFiniteError, RecurraError


def told(ctx: rc.Context, bounds: Mapping[Any, int], backend: str = "jax", **run: Any) -> str:
    """What a user is told, the numbers of lines left out."""
    program = ctx.compile(bounds, backend=backend, check="nan")
    with np.errstate(all="ignore"), pytest.raises(NotFiniteError) as e:
        program.run(**run)
    return re.sub(r"(test_nan_locator.py):\d+", r"\1", str(e.value))


@pytest.mark.parametrize("backend", ["jax", "numpy", "torch"])
def test_the_whole_message(backend: str):
    """x falls by 1/4: it is 0 at t=4, in the iteration in which it starts at 1."""
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        start = rc.like(rc.f32[()], (i,))
        start[0] = 3.0
        start[i + 1] = start - 1.0
        x = rc.like(rc.f32[()], (b, i, t))
        x[b, i, 0] = start + 0.5 * rc.value(b)
        x[b, i, t + 1] = x - 0.25
        height = x.log()
        rc.log(loss=height[0:B, i, 0:T].mean())
    assert told(ctx, {B: 2, I: 5, T: 6}, backend) == (
        "log makes -inf at b=0, i=2, t=4\n"
        "  --> test_nan_locator.py   height = x.log()\n"
        "  height: x is 0\n"
        "  it reaches loss is nan at i=2\n"
        "  hint: keep what log is given where it is finite (rc.maximum, rc.minimum, "
        "a smaller learning rate)"
    )


@pytest.mark.parametrize("backend", ["jax", "numpy", "torch"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_floats_of_every_size_are_looked_at(kind: str, backend: str) -> None:
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        x = rc.like(getattr(rc, kind)[2], domain=(t,))
        x[0] = 1.0
        x[t + 1] = (x - 0.5).log()
        rc.output(y=x[0:T])
    assert told(ctx, {T: 4}, backend).startswith("log makes nan at t=1, element [0]")


def test_what_a_choice_hides_is_not_named():
    """log(0) and log(-1) are made at every iteration, and chosen in the last."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        x = rc.value(t) - 1.0
        hidden = x.log()
        y = rc.where(x > 0, hidden, 0.0)
        z = rc.where(rc.value(i) > 2.5, x.sqrt() + y, y)  # sqrt(-1) at t=0
        rc.log(m=z[i, 0:T].sum())
    text = told(ctx, {I: 5, T: 3})
    assert text.startswith("sqrt makes nan at t=0\n  --> test_nan_locator.py   z = rc.where(")
    assert "x is -1\n  it reaches m is nan" in text


def test_the_first_that_reaches_the_result_not_the_first_that_is_made():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.value(t) - 5.0
        y = rc.where(rc.value(t) < 3.5, 1.0, x.log())
        rc.output(total=y[0:T].sum())
    assert told(ctx, {T: 8}).startswith("log makes nan at t=4\n")


def test_gradients_are_named_by_the_line_that_they_are_of():
    """The square root of 0 has no slope, and 0 times it is no number."""
    ctx = rc.Context(num_dims=1)
    with ctx as ((i, I),):
        w = rc.nn.Parameter(rc.constant([1.0, 4.0]), domain=(i,), name="w")
        loss = ((w - 1.0).sqrt() * rc.constant([0.0, 1.0])).sum()
        loss.backward()
        rc.optim.SGD([w], lr=0.1).step()
        rc.log(loss=loss)
    text = told(ctx, {I: 4})
    assert re.match(r"\w+ makes (inf|nan) at i=0, element \[0\]\n", text)
    assert "--> test_nan_locator.py   loss = ((w - 1.0).sqrt()" in text
    assert "reaches w_next is nan at i=0" in text


def test_a_row_without_anything_to_attend_to():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        scores = rc.where(
            rc.constant(np.arange(3.0)) < rc.value(t), rc.constant(np.ones(3)), -np.inf
        )
        p = scores.softmax()
        rc.output(p=p)
    text = told(ctx, {T: 4})
    assert text.startswith("softmax makes nan at t=0, element [0]\n")
    assert "p: scores is -inf" in text


def test_a_state_that_grows():
    ctx = rc.Context(num_dims=1)
    with ctx as ((i, I),):
        w = rc.like(rc.f32[()], (i,))
        w[0] = 1e30
        w[i + 1] = w * 1e3
        rc.output(last=w[I - 1])
    text = told(ctx, {I: 20})
    assert re.match(
        r"mul makes inf at i=2\n  --> test_nan_locator.py   w\[i \+ 1\] = w \* 1e3\n", text
    )


def test_what_the_host_answers():
    def sensor(x: np.ndarray) -> np.ndarray:
        return np.where(x > 2.5, np.nan, x).astype("f4")

    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        y = rc.call(sensor, rc.f32, rc.value(t) + 0.0 * rc.value(i))
        rc.log(m=(y * 2.0)[i, 0:T].sum())
    text = told(ctx, {I: 2, T: 5})
    assert text.startswith("sensor gives nan at i=0, t=3\n")
    assert "it comes from outside of the program" in text


def test_an_input():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.input(rc.f32[()], (t,), "x")
        rc.output(y=(x + 1.0)[0:T].sum())
    text = told(ctx, {T: 3}, inputs={"x": np.array([1, np.nan, 2])})
    assert text.startswith("input makes nan at t=1\n")


def test_what_is_finite_is_what_it_was():
    """An inf that is written as a constant is nobody's mistake."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        best = rc.like(rc.f32[()], (i, t))
        best[i, 0] = -np.inf
        best[i, t + 1] = rc.maximum(best, rc.uniform((i, t)))
        rc.log(first=best[i, 0], last=best[i, T - 1])
    bounds = {I: 3, T: 5}
    got = ctx.compile(bounds, check="nan").run()
    want = ctx.compile(bounds).run()
    assert np.isneginf(got["first"]).all()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_another_check():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        rc.output(y=rc.value(t))
    with pytest.raises(RecurraError, match="there is no check 'inf'"):
        ctx.compile({T: 3}, check="inf")


SCRIPT = """\
import recurra as rc
ctx = rc.Context(num_dims=1)
with ctx as ((t, T),):
    x = 1.0 / (rc.value(t) - 2.0)
    rc.log(x=x)
print(ctx.compile({T: 4}).run()["x"])
"""


def test_run_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert cli.main(["run", str(script)]) == 0
    assert "inf" in capsys.readouterr().out
    assert cli.main(["run", str(script), "--check", "nan"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "div makes inf at t=2\n  --> script.py:4   x = 1.0 / (rc.value(t) - 2.0)"
    )
    assert cli.main(["run", str(script), "--check", "nan", "--interpret"]) == 2
    assert "two ways to run a program" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A learning rate beyond all reason; the environment is on the host."""
    sizes = ["--rows=2", "--steps=6", "--iterations=3", "--hidden", "4", "--checkpoint-every=1"]
    arguments = ["train", "reinforce", "--check", "nan", "--lr", "1e38", *sizes]
    assert cli.main([*arguments, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert re.search(r"^\w+ makes (inf|-inf|nan) at .*i=\d", said, re.MULTILINE)
    assert "--> " not in said  # no line of it is the user's
    assert "it reaches " in said
    assert cli.main([*arguments[:4], *sizes, "--out", str(tmp_path)]) == 0
