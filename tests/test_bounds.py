"""A bound of its own: the n of an n-step return is given at compile, and is then as if written."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from recurra.errors import RecurraError
from recurra.executable import Executable
from recurra.interp import run


def program(n: int | None, given: int = 0, **options: object) -> Executable:
    """n-step values of a walk and their gradient; without `n` it is a bound, `given` at compile."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        N = rc.bound("N") if n is None else n
        w = rc.nn.Parameter(rc.constant(0.5), domain=(i,), name="w")
        r = rc.like(rc.f32[()], (i, t))
        r[i, 0] = w
        r[i, t + 1] = (r + rc.value(t) * w).sin()
        g = r[i, t : rc.min(t + N, T)].discounted_sum(0.9)
        late = rc.where(t >= N, r[i, rc.max(t - N, 0)], 0.0)
        loss = (g + late)[i, 0:T].square().mean()
        loss.backward()
        rc.optim.SGD([w], lr=0.01).step()
        rc.log(loss=loss, w=w)
        rc.output(g=g)
    bounds: dict[object, int] = {I: 3, T: 12}
    return ctx.compile(bounds if n is not None else {**bounds, N: given}, **options)


@pytest.mark.parametrize("n", [3, 5])
def test_a_bound_is_the_number_that_it_is_given(n: int):
    bound, literal = program(None, n), program(n)
    assert bound.equations == literal.equations
    assert bound.schedule_text == literal.schedule_text
    assert bound.source == literal.source
    assert bound.store_rows == literal.store_rows
    want = literal.run()
    for name, x in bound.run().items():
        np.testing.assert_array_equal(x, want[name])


def test_one_program_for_several_n():
    """Learning follows acting n - 1 steps later; the oracle agrees."""
    for n in (2, 4):
        p = program(None, n, backend="numpy")
        assert f"@-{n - 1}" in p.schedule_text
        want = run(p.source_graph, {"I": 3, "T": 12, "N": n})
        got = p.run()
        for name, o in p.logs.items():
            np.testing.assert_allclose(got[name], want[o], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_bound_is_a_number_too():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        N = rc.bound("N")
        x = rc.value(t)
        rc.output(y=x[t : rc.min(t + N, T)].sum() / (N + 0.0), n=rc.value(N * 2 + 1))
    got = ctx.run({T: 4, N: 2})
    np.testing.assert_array_equal(got["y"], [0.5, 1.5, 2.5, 1.5])
    assert got["n"] == 5
    with pytest.raises(RecurraError, match="no value is given for the bound N"):
        ctx.run({T: 4})
    with pytest.raises(RecurraError, match="the bound N cannot be 0"):
        ctx.run({T: 4, N: 0})
