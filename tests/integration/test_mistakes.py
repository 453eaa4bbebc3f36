"""What users are told: what is wrong, where, the two facts that disagree, one way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from programs import given, tracing
from recurra.analysis.graph_builder import current
from recurra.errors import DomainError, RecurraError, ShapeError
from recurra.frontend import functions as rc
from recurra.frontend.dims import Index
from recurra.frontend.tensor import RecurrentTensor, as_tensor
from recurra.ir.expr import Sym
from recurra.ir.types import Type

b_, t_, i_, T = (Index(Sym(d)) for d in "btiT")


def vector(name: str = "x") -> RecurrentTensor:
    return given(Type("f32", (4,)), (b_, t_), name)


def fresh() -> RecurrentTensor:
    return rc.like(Type("f32", (4,)), (b_, t_), "y")


def define(key: Any, value: Callable[[], Any]) -> Callable[[], Any]:
    def f() -> None:
        y = fresh()
        y[key] = value()

    return f


def define_twice() -> None:
    x = vector() * 2.0
    x[b_, t_] = 1.0


MISTAKES: dict[str, tuple[type[RecurraError], Callable[[], Any], str, str]] = {
    "wrong arity": (
        DomainError,
        lambda: vector()[t_],
        "x is indexed with 1 expression",
        "its domain is [b<B,t<T]",
    ),
    "a tensor as an index": (
        DomainError,
        lambda: vector()[b_, vector("i").sum()],
        "is no index for dim t",
        "quasi-affine",
    ),
    "a product as an index": (
        DomainError,
        lambda: vector()[b_, t_ * T],
        "the index multiplies two unknowns: T*t",
        "T*t is not a constant times a dim",
    ),
    "a condition as an index": (
        DomainError,
        lambda: vector()[b_, t_ > 0],
        "t > 0 is no index",
        "quasi-affine",
    ),
    "a power as an index": (
        DomainError,
        lambda: vector()[b_, 2**t_],
        "is no index for dim t",
        "quasi-affine",
    ),
    "division by a dim": (
        DomainError,
        lambda: vector()[b_, T // t_],
        "i32[] over (t) is no index for dim t",
        "quasi-affine",
    ),
    "steps backwards": (
        DomainError,
        lambda: vector()[b_, 0:T:-2],
        "the range 0:T is read in steps of -2",
        "a constant of at least 1",
    ),
    "truth of a dim": (
        DomainError,
        lambda: bool(t_ > 0),
        "t > 0 has no truth value",
        "every point of its dims",
    ),
    "truth of a tensor": (
        DomainError,
        lambda: bool(vector().sum() > 0),
        "no truth value",
        "bool[] over (b, t)",
    ),
    "iterating": (
        DomainError,
        lambda: list(vector()),
        "cannot be iterated over",
        "f32[4] over (b, t)",
    ),
    "an unknown dim": (
        RecurraError,
        lambda: rc.like(Type("f32"), (i_,)),
        "i is no dim of this context",
        "its dims are b, t",
    ),
    "sizes": (
        ShapeError,
        lambda: vector() + np.ones(3),
        "add of f32[4] and f32[3]: sizes 4 and 3 do not match",
        "axis by axis from the right",
    ),
    "no such axis": (
        ShapeError,
        lambda: vector().sum(axis=1),
        "there is no axis 1",
        "f32[4] over (b, t)",
    ),
    "too many brackets": (
        ShapeError,
        lambda: vector()[b_, t_][0, 0],
        "2 expressions index 1 axes",
        "f32[4] over (b, t)",
    ),
    "a step inside": (
        ShapeError,
        lambda: vector()[b_, t_][0:T:2],
        "a range inside a tensor has step 2",
        "steps are counted between numbers",
    ),
    "a wrong position": (
        ShapeError,
        lambda: vector()[b_, t_]["k"],
        "'k' is no position on axis 0",
        "f32[4] over (b, t)",
    ),
    "reshape": (
        ShapeError,
        lambda: vector().reshape(3),
        "reshape: f32[4] has not the size of f32[3]",
        "x[b,t] is f32[4]",
    ),
    "reshape to what is left": (
        ShapeError,
        lambda: vector().reshape(3, -1),
        "-1 has no value in the shape 3, -1",
        "this is f32[4] over (b, t), and 4 elements are not a multiple of 3",
    ),
    "matmul": (
        ShapeError,
        lambda: vector() @ vector("z").sum(),
        "@ needs axes",
        "f32[] over (b, t)",
    ),
    "no gradient": (
        ShapeError,
        lambda: as_tensor(vector().grad),
        "None is no tensor",
        "x.grad is None before backward(), and where the loss does not depend on x",
    ),
    "no such element type": (
        ShapeError,
        lambda: as_tensor(np.array([1j])),
        "no tensor has the type complex128",
        "of array([0.+1.j])",
    ),
    "a metric with axes": (
        RecurraError,
        lambda: rc.log(m=vector()),
        "the metric m is no scalar",
        "f32[4] over (b, t)",
    ),
    "defined with another type": (
        ShapeError,
        define((b_, t_), lambda: vector().cast("f64")),
        "a branch of y has another type",
        "y is f32[4], this branch is f64[4]",
    ),
    "defined with another shape": (
        ShapeError,
        define((b_, t_), lambda: np.ones(3)),
        "y is f32[4] at every point, and this value f32[3]",
        "f32[3]",
    ),
    "defined at too few": (
        DomainError,
        define(t_, lambda: 1.0),
        "y is defined at 1 expressions",
        "its domain is [b<B,t<T]",
    ),
    "defined at 2*t": (
        DomainError,
        define((b_, 2 * t_), lambda: 1.0),
        "y cannot be defined at 2*t",
        "must be t, t+c, or free of dims",
    ),
    "defined over a range that moves": (
        DomainError,
        define((b_, slice(t_, T)), lambda: 1.0),
        "y cannot be defined at t:T",
        "must be t, t+c, or free of dims",
    ),
    "defined at data": (
        DomainError,
        define((b_, "t"), lambda: 1.0),
        "'t' is no index for dim t",
        "quasi-affine",
    ),
    "defined twice": (
        DomainError,
        define_twice,
        "already has its equation",
        "it is f32[4] over (b, t)",
    ),
    "never defined": (
        DomainError,
        lambda: (fresh(), current().graph()),
        "y is declared but never defined",
        "its domain is [b<B,t<T]",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    kind, f, what, fact = MISTAKES[name]
    with tracing("bt"), pytest.raises(kind) as e:
        f()
    text = str(e.value)
    assert what in text.splitlines()[0]
    assert "--> test_mistakes.py:" in text.splitlines()[1]
    assert fact in text


def test_the_whole_message() -> None:
    with tracing("t") as (_, (t,)):
        x = given(Type("f32", (4,)), (t,), "x")
        with pytest.raises(ShapeError) as e:
            x + np.ones(3)  # the user's line
    line = e.value.loc.line if e.value.loc else 0
    assert str(e.value) == (
        "add of f32[4] and f32[3]: sizes 4 and 3 do not match\n"
        f"  --> test_mistakes.py:{line}   x + np.ones(3)  # the user's line\n"
        "  shapes meet axis by axis from the right\n"
        "  hint: expand, reshape or transpose one of them"
    )


def test_a_varying_value_needs_the_dim() -> None:
    with tracing("bt") as (_, (b, t)):
        y = rc.like(Type("f32"), (b,), "y")
        with pytest.raises(DomainError) as e:
            y[b] = given(Type("f32"), (b, t), "x")
    assert "y is defined by a value that varies with t" in str(e.value)
    assert "y has the domain [b<B], the value [b<B,t<T]" in str(e.value)


def test_outside_of_a_program() -> None:
    with pytest.raises(RecurraError, match="no program is being written here"):
        rc.constant(1.0)
