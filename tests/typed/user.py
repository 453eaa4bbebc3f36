"""A user's program, as a type checker sees it; `tests/integration/test_typed.py` has it checked."""

from typing import Any, assert_type

import numpy as np

import recurra as rc
from recurra.frontend.dims import Index
from recurra.window import Executor

ctx = rc.Context(dims="b t")
with ctx as ((b, B), (t, T)):
    x = rc.input(rc.f32[4], domain=(b, t), name="x")
    assert_type(x, rc.Tensor)
    h = rc.like(rc.f32[4], domain=(b, t), name="h")
    h[b, 0] = rc.zeros((4,))
    h[b, t + 1] = 0.5 * h + x.tanh()
    assert_type(h[b, t:T].sum(), rc.Tensor)
    assert_type(x * 2.0 + rc.value(t), rc.Tensor)
    assert_type(rc.where((x == 0.0) | (x != x), 0.0, x), rc.Tensor)
    assert_type(x == 0.0, rc.Tensor)
    p = rc.nn.Parameter(rc.zeros((4,)), domain=(t,), name="p")
    assert_type(p * 2.0, rc.Tensor)
    assert_type(p.sum(axis=0, keepdims=True), rc.Tensor)
    assert_type(p[t], rc.Tensor)
    assert_type(rc.nn.Linear(4, 2, domain=(t,)).copy(), rc.nn.Linear)
    rc.output(h=h)


def indices(n: Index) -> None:
    """Of indices and integers there are indices, of numbers and tensors tensors."""
    assert_type(2 * n + 1 - n // 2, Index)
    assert_type(n < 3, Index)
    assert_type((n / 2).sqrt(), rc.Tensor)
    assert_type(n < rc.zeros(()), rc.Tensor)


program = ctx.compile({B: 2, T: 3}, backend="numpy", tile_points=0)
assert_type(program.run(seed=1), dict[str, Any])
assert_type(rc.__version__, str)


def told(first: int, metrics: dict[str, np.ndarray]) -> None:
    """What a run tells as it goes on."""


def seen(run: Executor, x: np.ndarray) -> None:
    assert_type(run.read(x), np.ndarray)


program.run(on_step=told, inputs={"x": np.zeros((2, 3, 4))}, window=2)
