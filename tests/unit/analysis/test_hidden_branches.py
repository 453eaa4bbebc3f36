"""A branch that earlier ones hide for all bounds is refused; one that is seen for some is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import DomainError


def written(define: Callable[[Any, Any, Any, Any], None]) -> rc.Context:
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        n = rc.bound("N")
        x = rc.like(rc.f32, (t,), name="x")
        define(x, t, T, n)
        rc.output(x=x + 0.0 * rc.value(n))
    return ctx


def everywhere_first(x: Any, t: Any, T: Any, n: Any) -> None:
    x[t] = 1.0
    x[0] = 2.0


def twice(x: Any, t: Any, T: Any, n: Any) -> None:
    x[t] = 1.0
    x[t] = 2.0


def together(x: Any, t: Any, T: Any, n: Any) -> None:
    x[t < 3] = 1.0
    x[t >= 2] = 2.0
    x[T - 1] = 3.0


def shifted(x: Any, t: Any, T: Any, n: Any) -> None:
    x[t >= 1] = 1.0
    x[t + 1] = x * 2.0
    x[0] = 1.0


def even(x: Any, t: Any, T: Any, n: Any) -> None:
    x[t % 2 == 0] = 1.0
    x[t % 4 == 0] = 2.0
    x[t] = 3.0


@pytest.mark.parametrize("define", [everywhere_first, twice, together, shifted, even])
def test_a_branch_that_never_holds_is_refused(define: Any) -> None:
    with pytest.raises(DomainError, match="this branch of x never holds: others come before it"):
        written(define)


def test_both_lines_are_told() -> None:
    with pytest.raises(DomainError) as e:
        written(everywhere_first)
    text = str(e.value)
    assert (
        "x[0] = 2.0\n  the first branch that holds wins, and where t == 0 earlier ones do" in text
    )
    assert "the first of them   --> test_hidden_branches.py" in text
    assert text.index("x[0] = 2.0") < text.index("x[t] = 1.0")


def first_last(x: Any, t: Any, T: Any, n: Any) -> None:
    """With T = 1 the last is the first."""
    x[0] = 1.0
    x[T - 1] = 3.0
    x[t] = 2.0


def by_bound(x: Any, t: Any, T: Any, n: Any) -> None:
    """With N = 1 there is nothing between."""
    x[t >= n] = 3.0
    x[0] = 1.0
    x[t] = 2.0


def outside(x: Any, t: Any, T: Any, n: Any) -> None:
    """What falls outside of the domain is dropped."""
    x[t] = 1.0
    x[t < 0] = 2.0


@pytest.mark.parametrize(
    ("define", "want"),
    [(first_last, [1, 2, 2, 3]), (by_bound, [1, 2, 3, 3]), (outside, [1, 1, 1, 1])],
)
def test_a_branch_that_may_hold_is_taken(define: Any, want: list[float]) -> None:
    ctx = written(define)
    np.testing.assert_array_equal(ctx.run({"T": 4, "N": 2}, backend="numpy")["x"], want)
    assert ctx.run({"T": 1, "N": 1}, backend="numpy")["x"].shape == (1,)


def every(n: int) -> Callable[..., None]:
    def define(x: Any, t: Any, T: Any, _: Any) -> None:
        x[t, t % n == 0] = 1.0
        x[t, (t % n == 1) & (t > 0)] = 2.0
        x[t, ~(t % n <= 2)] = 3.0
        x[t] = rc.where((t + 1) % n == 1, 5.0, 10.0 + rc.value(t % n))

    return define


@pytest.mark.parametrize(
    ("n", "want"), [(1, [1, 1, 1, 1]), (2, [1, 2, 1, 2]), (3, [1, 2, 12, 1]), (4, [1, 2, 12, 3])]
)
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_parameter_may_leave_no_points_to_a_branch(
    n: int, want: list[float], backend: str
) -> None:
    """Of `t % n == 0` Python makes True where n is 1, of `t % n == 1` False."""
    got = written(every(n)).run({"T": 4, "N": 2}, backend=backend)["x"]
    np.testing.assert_array_equal(got, want)


def test_a_module_at_all_of_its_points_or_at_none(tmp_path: Any) -> None:
    ctx = rc.Context(num_dims=1)
    with ctx as ((i, I),):
        net = rc.nn.Linear(2, 1, domain=(i,))
        net[(i + 1) % 1 == 0].checkpoint(tmp_path / "all")
        net[(i + 1) % 1 == 1].checkpoint(tmp_path / "none")
        (net(rc.constant([1.0, 2.0])).square().sum()).backward()
        rc.optim.SGD(net.params, lr=0.1).step()
        rc.output(w=net.weight)
    ctx.run({I: 3}, backend="numpy", folder=tmp_path / "run")
    assert [x.name for x in tmp_path.glob("a*")] == ["all"]
    assert not (tmp_path / "none").exists()


def test_a_tensor_of_branches_that_hold_nowhere_is_refused() -> None:
    def define(x: Any, t: Any, T: Any, n: Any) -> None:
        x[t, t % 1 == 1] = 1.0

    with pytest.raises(DomainError) as e:
        written(define).compile({"T": 4, "N": 1}, backend="numpy")
    assert "x is defined at no point" in str(e.value)
    assert "hint: define the rest after it: x[t] = ..." in str(e.value)


def test_gradients_leave_out_what_is_hidden() -> None:
    ctx = rc.Context(num_dims=1)
    with ctx as ((i, I),):
        w = rc.nn.Linear(1, 1, domain=(i,), bias=False)
        y = rc.like(rc.f32, (i,))
        y[i, i % 1 == 0] = w.weight.sum() * 3.0
        y[i] = w.weight.sum() * 5.0
        y.backward()
        rc.output(g=w.weight.grad)
    got = ctx.run({I: 2}, backend="numpy")["g"]
    np.testing.assert_array_equal(got, np.full((2, 1, 1), 3.0))


def test_only_conditions_are_joined() -> None:
    with rc.Context(num_dims=1) as ((t, _),):
        with pytest.raises(DomainError, match="which is no condition"):
            ~(t + 1)
        with pytest.raises(TypeError):
            (t > 0) & 1
