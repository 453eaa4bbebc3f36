"""A run may go on with other numbers and for longer: that is no other program, and it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import RecurraError
from recurra.ir.graph_parser import parse
from recurra.runtime.executable import Executable

PASTS = {
    "the last one": lambda m, i: m,
    "all": lambda m, i: m[0 : i + 1].mean(axis=0),
    "twelve": lambda m, i: m[rc.max(i - 11, 0) : i + 1].mean(axis=0),
    "three": lambda m, i: m[rc.max(i - 2, 0) : i + 1].mean(axis=0),
    "a drawn one": lambda m, i: m[0 : i + 1].take((rc.uniform((i,)) * rc.value(i)).cast("i32")),
}


def learner(
    saved: Path | None, iterations: int, past: str = "all", lr: float = 0.1, **how: Any
) -> Executable:
    """A line that learns from some of what it has seen before, saved every third iteration."""
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        net = rc.nn.Linear(2, 2, domain=(i,))
        m = rc.like(rc.f32[2], (i,), name="m")
        m[i] = rc.uniform((i,), (2,))
        loss = (net(PASTS[past](m, i)) + 1.0).square().sum()
        loss.backward()
        rc.optim.SGD(net.params, lr=lr).step()
        if saved is not None:
            net[i % 3 == 0].checkpoint(saved)
        rc.log(loss=loss)
    return ctx.compile({I: iterations}, **how)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("past", PASTS)
def test_a_run_is_extended_to_the_last_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], past: str, backend: str
):
    """What is kept of all iterations is as long as the new run."""
    whole = learner(None, 16, past, backend=backend).run(seed=3)["loss"]
    first = learner(tmp_path, 8, past, backend=backend).run(seed=3)["loss"]
    rest = learner(tmp_path, 16, past, backend=backend).run(resume=tmp_path)["loss"]
    assert len(rest) == 10
    np.testing.assert_allclose(first, whole[:8], rtol=1e-6)
    np.testing.assert_allclose(rest, whole[6:], rtol=1e-6)
    assert "numbers" not in capsys.readouterr().err


def test_a_run_is_shortened_as_far_as_it_has_come(tmp_path: Path):
    whole = learner(tmp_path, 16, backend="numpy").run(seed=3)["loss"]
    path = tmp_path / "checkpoints" / "00000009.safetensors"
    rest = learner(tmp_path, 12, backend="numpy").run(resume=path)["loss"]
    np.testing.assert_allclose(rest, whole[9:12], rtol=1e-6)
    file = Path("checkpoints") / path.name
    for past in ("all", "the last one"):
        folder = tmp_path / past
        learner(folder, 16, past, backend="numpy").run(seed=3)
        path, short = folder / file, learner(folder, 8, past, backend="numpy")
        with pytest.raises(RecurraError, match=r"saved after 9 iterations\n.*has 8"):
            short.run(resume=path)


def test_other_numbers_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    learner(tmp_path, 8, backend="numpy").run(seed=3)
    capsys.readouterr()
    rest = learner(tmp_path, 8, lr=0.25, backend="numpy").run(resume=tmp_path)["loss"]
    assert "resumed with other numbers than it was saved with (0.1 there, 0.25 here; " in (
        capsys.readouterr().err
    )
    assert len(rest) == 2
    with pytest.raises(RecurraError, match="belongs to another program"):
        learner(tmp_path, 8, "three", backend="numpy").run(resume=tmp_path)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("x: f32[] = const(value=0.1)", "x: f32[] = const(value=1e-05)", True),
        ("x: f32[] = const(value=1)", "x: f32[] = const(value=-inf)", True),
        ("x: f32[2] = discounted_sum(y, gamma=0.9)",
         "x: f32[2] = discounted_sum(y, gamma=1.0)", True),
        ("x: f32[] = const(value=0.1)", "x: f32[2] = const(value=0.1, shape=(2,))", False),
        ("x: i32[] = const(value=0.1, dtype='i32')", "x: f32[] = const(value=0.1)", False),
        ("x: f32[4] = uniform(id=1, shape=(4,))", "x: f32[4] = uniform(id=2, shape=(4,))", False),
        ("x: f32[2] = sum(y, axes=(0,))", "x: f32[2] = sum(y, axes=(1,))", False),
        ("x: (i32[]) = call(y, fn='moon(g=1.6)', results=(('i32', ()),))",
         "x: (i32[]) = call(y, fn='moon(g=9.8)', results=(('i32', ()),))", False),
        ("x[t<T]: f32[2,2] = merge(y, z, when=(t == 0, t >= 1))",
         "x[t<T]: f32[2,2] = merge(y, z, when=(t == 1, t >= 2))", False),
    ],
)  # fmt: skip
def test_numbers_are_no_part_of_a_program(one: str, other: str, is_same: bool):
    given = [f"{n}: f32[2,2] = input(dtype='f32', shape=(2, 2))" for n in ("y", "z")]
    first, second = (parse("\n".join(["dims t<T", *given, x, "return x"])) for x in (one, other))
    assert (first.fingerprint() == second.fingerprint()) is is_same
    if is_same:
        assert first.numbers() != second.numbers()
        assert len(first.numbers()) == len(second.numbers()) == 1


def falling(saved: Path, iterations: int, length: int) -> Executable:
    """A line that learns at a rate that falls to the last iteration, from so many points."""
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        net = rc.nn.Linear(1, 1, domain=(i,))
        loss = net(rc.uniform((i, t), (1,))).square()[i, 0:T].mean()
        loss.backward()
        rate = 0.1 * (1.0 - rc.value(i, "f32") / rc.value(I, "f32"))
        rc.optim.SGD(net.params, lr=rate).step()
        net[i % 2 == 0].checkpoint(saved)
        rc.log(loss=loss)
    return ctx.compile({I: iterations, T: length}, backend="numpy")


@pytest.mark.parametrize(
    ("iterations", "length", "told"),
    [(6, 4, ""), (9, 4, "I=6 there, I=9 here"), (6, 8, "T=4 there, T=8 here")],
)
def test_other_bounds_are_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    iterations: int,
    length: int,
    told: str,
):
    falling(tmp_path, 6, 4).run(seed=3)
    capsys.readouterr()
    falling(tmp_path, iterations, length).run(resume=tmp_path)
    said = capsys.readouterr().err
    assert told in said
    assert ("metrics will not be those" in said) == bool(told)
