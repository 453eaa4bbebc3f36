"""What has no loop stands before the loops of its level, and parts none of them."""

from __future__ import annotations

import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS

ELEMENTS, POINTS = 512, 20


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("backward", [False, True])
def test_a_constant_between_two_statements_of_a_loop(backward: bool, backend: str) -> None:
    """The 2 was made after the loop of x, and x was kept for a loop of its readers."""
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        x = rc.like(rc.f32[ELEMENTS], (t,))
        if backward:
            x[T - 1] = rc.full(ELEMENTS, 0.5)
            x[t] = x[t + 1].sin()
        else:
            x[0] = rc.full(ELEMENTS, 0.5)
            x[t] = x[t - 1].sin()
        rc.output(y=(x * 2.0).exp()[3 : T - 2].sum(axis=0).max())
    program = ctx.compile({T: POINTS}, backend=backend)
    loops = [line for line in program.schedule_text.splitlines() if line.startswith("for t")]
    assert len(loops) == 1, program.schedule_text
    want = [0.5]
    while len(want) < POINTS:
        want.append(np.sin(want[-1]))
    if backward:
        want.reverse()
    np.testing.assert_allclose(
        program.run()["y"], np.exp(2 * np.array(want))[3:-2].sum(), rtol=1e-4
    )
