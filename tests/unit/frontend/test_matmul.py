"""a @ b of any ranks: np.matmul, and the gradients of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from recurra.errors import ShapeError

SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((3,), (5, 3, 4)),
    ((2, 3), (3,)),
    ((5, 2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (1, 3, 4)),
    ((0, 2, 3), (1, 3, 4)),
    ((2, 0), (0, 3)),
    ((7, 1, 2, 3), (1, 4, 3, 1)),
]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_products_and_their_gradients(left: Any, right: Any, backend: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in (left, right))
    x, y = (torch.tensor(v, requires_grad=True) for v in (a, b))
    want = torch.matmul(x, y)
    weights = rng.normal(size=want.shape).astype(np.float32)
    (want * torch.tensor(weights)).sum().backward()
    ctx = rc.Context(num_dims=0)
    with ctx:
        p, q = rc.constant(a), rc.constant(b)
        z = p @ q
        (z * rc.constant(weights)).sum().backward(wrt=[p, q])
        rc.output(z=z, p=p.grad, q=q.grad)
    got = ctx.run({}, backend=backend)
    for found, expected in ((got["z"], want.detach()), (got["p"], x.grad), (got["q"], y.grad)):
        assert found.shape == tuple(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_an_array_may_stand_on_the_left() -> None:
    ctx = rc.Context(num_dims=0)
    with ctx:
        rc.output(z=[[1.0, 2.0]] @ rc.constant([[3.0], [4.0]]))
    assert ctx.run({}, backend="numpy")["z"].tolist() == [[11.0]]


def test_batches_that_do_not_meet_are_refused() -> None:
    with rc.Context(num_dims=0):
        a, b = (rc.constant(np.zeros(s, np.float32)) for s in ((5, 2, 3), (4, 3, 2)))
        with pytest.raises(ShapeError, match="batches of 5 and 4 do not match"):
            a @ b


def test_truth_values_are_counted() -> None:
    ctx = rc.Context(num_dims=0)
    with ctx:
        rc.output(n=rc.constant([True, True, False]) @ rc.constant([True, True, True]))
    n = ctx.run({}, backend="numpy")["n"]
    assert (n, n.dtype) == (2, np.int32)
