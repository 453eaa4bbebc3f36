"""The hand-written peers compute what they claim: draws, gradients, episodes, learning."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.extend.random import threefry_2x32

import recurra as rc
from benchmarks.core import cartpole, kernels, suite
from benchmarks.core.peers_jax import batch_first, batch_last, scan_grad_jax_random
from benchmarks.core.peers_torch import eager, parameters
from benchmarks.core.peers_torch import learn as torch_learn
from benchmarks.core.peers_torch import logits as torch_logits
from benchmarks.core.recurra_program import contestant
from benchmarks.core.workload import EPS, GAMMA, RESET, SAMPLE, SEED, initial
from benchmarks.harness import check, row_of
from benchmarks.threefry import threefry, uniform
from benchmarks.worker import name_of

REGIONS = [
    pytest.param(batch_first, 1, id="batch first"),
    pytest.param(batch_first, 4, id="batch first, Zt=4"),
    pytest.param(batch_last, 1, id="batch last"),
    pytest.param(batch_last, 4, id="batch last, Zt=4"),
]


def test_threefry_is_that_of_jax():
    key, counter = jnp.array([7, 123456789], jnp.uint32), jnp.arange(10, dtype=jnp.uint32)
    ours = threefry(*key, counter[:5], counter[5:])
    assert (jnp.concatenate(ours) == threefry_2x32(key, counter)).all()


def test_draws_are_fixed_by_their_coordinates():
    b, t = jnp.arange(2)[:, None], jnp.arange(3)
    draws = uniform(jnp.uint32(7), 2, jnp.int32(3), b, t, jnp.float32)
    assert (np.asarray(draws) * 2**23).tolist() == [
        [1146576, 4811104, 8106596],
        [844313, 2450129, 5805075],
    ]
    assert (draws[1, 2] == uniform(jnp.uint32(7), 2, jnp.int32(3), 1, 2, jnp.float32)).all()


def unrolled(theta, B, T, dtype):
    """The loss as the user writes it, step by step, with the mean episode length beside it."""
    seed, i = jnp.uint32(SEED), jnp.int32(0)
    b = jnp.arange(B)
    o = cartpole.reset(uniform(seed, RESET, i, b[:, None], jnp.arange(4), dtype))
    u = uniform(seed, SAMPLE, i, b, jnp.arange(T)[:, None], dtype)
    alive, log_p, r = jnp.ones(B, dtype), [], []
    for t in range(T):
        h = jnp.tanh(o @ theta["W1"] + theta["b1"])
        y = jnp.tanh(h @ theta["W2"] + theta["b2"]) @ theta["W3"] + theta["b3"]
        a = (u[t] > jax.nn.softmax(y)[:, 0]).astype(int)
        log_p.append(jax.nn.log_softmax(y)[b, a])
        r.append(alive)
        moved, done = cartpole.step(o, a)
        alive = jnp.where(done, 0.0, alive)
        o = jax.lax.stop_gradient(jnp.where(alive[:, None] > 0, moved, o))
    r = jnp.stack(r)
    g = jnp.stack([sum(GAMMA ** (k - t) * r[k] for k in range(t, T)) for t in range(T)])
    live = g[r > 0]
    advantage = r * (g - live.mean()) / (live.std() + EPS)
    return -(jnp.stack(log_p) * advantage).mean(), r.sum(0).mean()


@pytest.fixture(scope="module")
def by_autodiff():
    """Mean length and gradient of the unrolled program in float64, B=6, T=24."""
    with jax.enable_x64(True):
        theta = {k: jnp.array(x) for k, x in initial(SEED, np.float64).items()}
        gradient, length = jax.grad(unrolled, has_aux=True)(theta, 6, 24, jnp.float64)
    return float(length), {k: np.array(x) for k, x in gradient.items()}


def gradient_error(make, Zt, by_autodiff):
    length, gradient = by_autodiff
    with jax.enable_x64(True):
        answer = make(6, 24, SEED, Zt=Zt, dtype=jnp.float64).answer()
    assert answer["length"][0] == pytest.approx(length, rel=1e-14)
    return max(abs(answer[f"d_{k}"] - d).max() / abs(d).max() for k, d in gradient.items())


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize(("make", "Zt"), REGIONS)
def test_gradient_is_that_of_the_unrolled_program(make, Zt, by_autodiff):
    assert by_autodiff[0] < 24, "some episode has to end"
    assert gradient_error(make, Zt, by_autodiff) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("make", "Zt"), REGIONS[::2])
def test_a_wrong_gradient_is_seen(make, Zt, by_autodiff, monkeypatch):
    monkeypatch.setattr(kernels, "slope", jnp.ones_like)
    assert gradient_error(make, Zt, by_autodiff) > 1e-3


def by_hand(B, T):
    """One of the peers, in the place of our program."""
    return replace(batch_first(B, T, SEED), name="by hand")


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_peers_agree_before_they_are_timed():
    ours = by_hand(16, 30)
    answer = ours.answer()
    checked = {c.name: check((ours, answer), (c, c.answer())) for c in suite.contestants(16, 30)}
    assert checked == {
        "region, batch first": "exact",
        "region, batch last": "exact",
        "scan + jax.grad": "exact",
        "scan + jax.grad, jax.random": "work",
        "Python loop over jitted steps": "exact",
        "region, batch last, Zt=30": "exact",
    }


@pytest.mark.slow
@pytest.mark.parametrize("make", [batch_first, batch_last])
def test_launches_of_a_few_iterations_are_one_launch_of_many(make):
    """`answer` cuts its three iterations in launches of 1 and 2, `run` takes 8 at once."""
    region = make(16, 30, SEED)
    assert region.answer()["length"].tolist() == region.run(10)[:3].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("make", [batch_last, scan_grad_jax_random])
def test_it_learns(make):
    lengths = make(64, 100, SEED).run(20)
    assert lengths[0] < 30
    assert lengths[-1] > 80


@pytest.mark.slow
def test_measure_gives_rows(monkeypatch):
    monkeypatch.setattr(suite, "contestants", lambda B, T: [batch_last(B, T, SEED)])
    (data,) = suite.measure(name_of(by_hand), B=8, T=10, quick=True)
    row = row_of(data)
    assert (row.case, row.peer) == ("T=10 B=8 1T", "region, batch last")
    assert row.checked == "exact"
    assert row.ci95[0] <= row.ratio <= row.ci95[1]


@pytest.mark.slow
def test_peers_in_torch_compute_what_we_do():
    """Our environment is taken whole on JAX, and as equations on Torch."""
    answer = contestant(6, 24).answer()
    for other in (eager(6, 24, SEED), contestant(6, 24, backend="torch", via=rc.import_jax)):
        assert check((contestant(6, 24), answer), (other, other.answer()), 1e-3) == "exact"


def test_the_gradient_of_the_compiled_torch_peer():
    th = {k: x.requires_grad_() for k, x in parameters(SEED).items()}
    rng = torch.Generator().manual_seed(0)
    o, w = torch.randn(8, 4, generator=rng), torch.randn(8, generator=rng)
    a = torch.randint(2, (8,), generator=rng)
    log_p = torch.log_softmax(torch_logits(th, o), -1).gather(-1, a[:, None])[:, 0]
    (-(w * log_p).sum() * 0.5).backward()
    for g, x in zip(torch_learn(th, o, a, w, 0.5), th.values(), strict=True):
        torch.testing.assert_close(g.detach(), x.grad, rtol=1e-5, atol=1e-6)
