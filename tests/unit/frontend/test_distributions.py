"""Distributions: where their draws differ."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_one_of_the_past_is_drawn(backend: str) -> None:
    """Weights over a range, whose length is another at every point: t + 1 classes at t."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        allowed = rc.where(rc.value(t) % 2.0 < 0.5, 0.0, -1e9)
        drawn = rc.nn.Categorical(allowed[0 : t + 1]).sample((b, t))
        rc.output(drawn=drawn)
    program = ctx.compile({B: 200, T: 6}, backend=backend)
    found = program.run(seed=1)["drawn"]
    for now in range(6):
        assert sorted(set(found[:, now].tolist())) == list(range(0, now + 1, 2))


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_one_deviation_for_all_means(backend: str) -> None:
    ctx = rc.Context(dims="t")
    with ctx as (t, T):
        mean, log_std = rc.constant([1.0, 2.0, 3.0]), rc.constant(0.5)
        apart = rc.nn.Gaussian(rc.constant(1.0), rc.constant([0.0, 0.0]))
        near = rc.nn.Gaussian(mean, log_std)
        rc.output(h=near.entropy(), lp=near.log_prob(mean), x=apart.sample(domain=(t,)))
    got = ctx.run({T: 2}, backend=backend)
    np.testing.assert_allclose(got["h"], 3 * (0.5 + 0.5 * (1 + np.log(2 * np.pi))), rtol=1e-6)
    np.testing.assert_allclose(got["lp"], -3 * (0.5 + 0.5 * np.log(2 * np.pi)), rtol=1e-6)
    assert len(np.unique(got["x"])) == 4


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_choices_that_are_masked_out(backend: str) -> None:
    """Logits of -inf: their classes are in no entropy, and no gradient is NaN."""
    ctx = rc.Context(num_dims=0)
    with ctx as ():
        x = rc.constant([0.5, 7.0, -1.0])
        pi = rc.nn.Categorical(rc.where(rc.constant([True, False, True]), x, -np.inf))
        (pi.entropy() + pi.log_prob(rc.constant(2))).backward(wrt=[x])
        assert x.grad is not None
        rc.output(h=pi.entropy(), slope=x.grad)
    got, p = ctx.run({}, backend=backend), 1 / (1 + np.exp(-1.5))
    np.testing.assert_allclose(got["h"], -p * np.log(p) - (1 - p) * np.log(1 - p), rtol=1e-5)
    slope = -p * (1 - p) * 1.5 - p
    np.testing.assert_allclose(got["slope"], [slope, 0.0, -slope], rtol=1e-5)


def test_the_likeliest_value_and_what_is_no_name() -> None:
    from recurra.frontend.nn.distributions import MultiCategorical

    with (ctx := rc.Context(dims="t")) as ((t, T),):
        x = rc.normal((t,), 4)
        one, several = rc.nn.Categorical(x), MultiCategorical(x, (3, 1))
        rc.output(x=x, one=one.mode(), several=several.mode(), mean=rc.nn.Gaussian(x, x).mode())
        assert repr(one) == "Categorical(logits=f32[4] over (t))"
        with pytest.raises(AttributeError, match="the distribution Categorical has no 'kl'"):
            one.kl  # type: ignore[attr-defined]  # noqa: B018
    got = ctx.run({T: 5}, backend="numpy")
    np.testing.assert_array_equal(got["one"], got["x"].argmax(-1))
    np.testing.assert_array_equal(got["several"][:, 0], got["x"][:, :3].argmax(-1))
    np.testing.assert_array_equal(got["several"][:, 1], 0)
    np.testing.assert_array_equal(got["mean"], got["x"])


def test_values_of_another_shape_or_type_are_refused() -> None:
    with rc.Context(dims="t") as ((t, T),):
        x = rc.normal((t,), 4)
        with pytest.raises(rc.RecurraError, match="has the shape of its mean"):
            rc.nn.Gaussian(x, x).log_prob(x[t][0])
        with pytest.raises(rc.RecurraError, match=r'a\.cast\("i32"\)'):
            rc.nn.Categorical(x).log_prob(x[t][0])
        with pytest.raises(rc.RecurraError, match=r"rc\.rl\.normalize\(x, over=\(t,\)\)"):
            x[t][0].std()
