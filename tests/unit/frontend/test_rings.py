"""Reads around a ring, x[(i + 1) % I, (j - 1) % J]: elements of values, turned once for all."""

import numpy as np
import pytest

import recurra as rc

BACKENDS = ("numpy", "jax", "torch")


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_brackets_choose_elements(backend: str):
    """As behind every read: whatever lies beyond the end of the ring."""
    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        x = rc.input(rc.f32[3], (i,), name="x")
        rc.output(ahead=x[(i + 1) % I][0], back=x[(i - 1) % I][2], here=x[i % I][1])
    given = np.arange(15, dtype=np.float32).reshape(5, 3)
    found = ctx.compile({I: 5}, backend=backend).run(inputs={"x": given})
    np.testing.assert_array_equal(found["ahead"], np.roll(given, -1, 0)[:, 0])
    np.testing.assert_array_equal(found["back"], np.roll(given, 1, 0)[:, 2])
    np.testing.assert_array_equal(found["here"], given[:, 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_rings(backend: str):
    """With another dim moved, a ring that is never left, and one that is run backward."""
    ctx = rc.Context(dims="t i j")
    with ctx as ((t, T), (i, I), (j, J)):
        x = rc.input(rc.f32, (i, j), name="x")
        u = rc.like(rc.f32, (t, i, j))
        u[0, i, j] = x
        u[t, i, j] = u[t - 1, (i + 1) % I, (j - 1) % J] + 0.5 * u[t - 1, (i - 1) % I, (j - 1) % J]
        rc.output(u=u, plain=u[t, i % I, (j + 1) % J], turned=x[(I - i) % I, (j + 1) % J])
    given = np.random.default_rng(0).standard_normal((4, 4)).astype("f4")
    found = ctx.compile({T: 3, I: 4, J: 4}, backend=backend).run(inputs={"x": given})
    u = [given]
    for _ in range(2):
        u.append(np.roll(u[-1], (-1, 1), (0, 1)) + 0.5 * np.roll(u[-1], (1, 1), (0, 1)))
    np.testing.assert_allclose(found["u"], np.stack(u), rtol=1e-6)
    np.testing.assert_allclose(found["plain"], np.roll(np.stack(u), -1, 2), rtol=1e-6)
    turned = given[-np.arange(4) % 4]
    np.testing.assert_array_equal(found["turned"], np.roll(turned, -1, 1))


def test_turns_are_shared():
    """Eight neighbors on a torus are read of x, of two turns of it, and of these with a border."""
    ctx = rc.Context(dims="i j")
    with ctx as ((i, I), (j, J)):
        x = rc.input(rc.f32, (i, j), name="x")
        ways = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
        rc.output(n=sum(x[(i + a) % I, (j + b) % J] for a, b in ways))
    program = ctx.compile({I: 6, J: 5}, backend="numpy")
    joins = [
        n for n in program.compilation.compiled.plan.graph.nodes.values() if n.op.name == "concat"
    ]
    assert len(joins) == 2 + 2 + 2  # of x along j and along i, and of each turn along i
    given = np.random.default_rng(0).standard_normal((6, 5)).astype("f4")
    by_hand = sum(np.roll(given, (-a, -b), (0, 1)) for a, b in ways)
    np.testing.assert_allclose(program.run(inputs={"x": given})["n"], by_hand, rtol=1e-5, atol=1e-6)
