"""Products of one operand as one, in a program that acts, values and learns in one loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recurra as rc

BOUNDS = dict(B=4, I=3, T=8)


def actor_critic() -> rc.Context:
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, _), (t, T)):
        net = rc.nn.Linear(4, 3, domain=(i,)), rc.nn.Linear(4, 2, domain=(i,))
        o = rc.uniform((b, i, t), (4,))
        h, k = (layer(o) for layer in net)
        loss = (h.tanh().sum() - k.tanh().sum()).square()
        loss[0:B, i, 0:T].mean().backward()
        rc.optim.SGD([p for layer in net for p in layer.params], lr=0.1).step()
        rc.log(loss=loss[0:B, i, 0:T].mean())
    return ctx


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_one_product(backend: str):
    ctx = actor_critic()
    plain, joined = (ctx.compile(BOUNDS, backend=backend, beside=x) for x in (False, True))
    assert not decided(plain)
    assert decided(joined) == ["einsum, einsum_2: one product of o[i]"]
    got, want = joined.run(seed=3)["loss"], plain.run(seed=3)["loss"]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert got[0] != got[-1]


def decided(program: Any) -> list[str]:
    return [x for x in program.compiled.stages.decisions if "one product of" in x]
