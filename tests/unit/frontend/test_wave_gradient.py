"""A wave on a grid that is looked at along one row: many points of few are asked for."""

import numpy as np
import pytest
import torch

import recurra as rc


@pytest.mark.slow  # a table with three dims
@pytest.mark.parametrize("row", [1, 5])
def test_gradient_of_a_loss_along_a_row(row: int):
    ctx = rc.Context(dims="t i j")
    with ctx as ((t, T), (i, I), (j, J)):
        c, seen = rc.input(rc.f32, (i, j), name="c"), rc.input(rc.f32, (t, j), name="seen")
        start = rc.input(rc.f32, (i, j), name="start")
        u = rc.like(rc.f32, (t, i, j))
        u[(i == 0) | (i == I - 1) | (j == 0) | (j == J - 1)] = 0.0
        u[0, i, j] = start
        u[1, i, j] = start
        p = u[t - 1, i, j]
        sides = u[t - 1, i + 1, j] + u[t - 1, i - 1, j] + u[t - 1, i, j + 1] + u[t - 1, i, j - 1]
        u[t, i, j] = 2.0 * p + c.square() * (sides - 4.0 * p) - u[t - 2, i, j]
        loss = (u[t, row, j] - seen).square()[0:T, 0:J].mean()
        loss.backward(wrt=c)
        rc.output(dc=c.grad)
    rng = np.random.default_rng(0)
    shapes = {"c": (8, 4), "seen": (5, 4), "start": (8, 4)}
    given = {k: rng.standard_normal(s).astype("f4") for k, s in shapes.items()}
    found = ctx.compile({T: 5, I: 8, J: 4}).run(inputs=given)["dc"]
    np.testing.assert_allclose(found, by_hand(given, row), rtol=2e-4, atol=1e-5)


def by_hand(given: dict[str, np.ndarray], row: int) -> np.ndarray:
    c = torch.tensor(given["c"], requires_grad=True)
    inside = torch.zeros(8, 4)
    inside[1:-1, 1:-1] = 1.0
    u = [torch.tensor(given["start"]) * inside] * 2
    for _ in range(2, 5):
        p = u[-1]
        sides = sum(p.roll(by, axis) for by in (1, -1) for axis in (0, 1))
        u.append((2 * p + c**2 * (sides - 4 * p) - u[-2]) * inside)
    (torch.stack(u)[:, row] - torch.tensor(given["seen"])).square().mean().backward()
    assert c.grad is not None
    return c.grad.numpy()
