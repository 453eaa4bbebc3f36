"""Distributions: where their draws differ."""

from __future__ import annotations

import numpy as np

import recurra as rc


def test_distributions_draw_at_every_point_that_is_asked_for():
    """Of weights that are the same everywhere: one draw, or one at every t."""
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        pi = rc.nn.Categorical(rc.constant(np.zeros(50, np.float32)))
        both = rc.nn.MultiCategorical(rc.constant(np.zeros(40, np.float32)), (20, 20))
        near = rc.nn.Gaussian(rc.constant([0.0, 1.0]), rc.constant([0.0, 0.0]))
        assert pi.sample().domain.dims == ()
        drawn = [pi.sample(domain=(t,)), both.sample((t,)), near.sample((t,)), near.rsample((t,))]
        assert all(x.domain.dims == ("t",) for x in drawn)
        rc.output(**{f"x{k}": x for k, x in enumerate(drawn)})
    got = ctx.run({T: 20}, backend="numpy")
    assert [x.shape for x in got.values()] == [(20,), (20, 2), (20, 2), (20, 2)]
    assert all(len(np.unique(x)) > 5 for x in got.values())
