"""Environments made of two functions of JAX: both kinds of episodes, actions that are numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import recurra as rc
from everywhere import BACKENDS
from recurra.errors import RecurraError


def paid(at: Any, a: Any) -> Any:
    after = at + 0.25 * (a - 1)
    return after, -jnp.abs(1.0 - after[0]), after[0] >= 0.9


def unpaid(at: Any, a: Any) -> Any:
    return at + 0.25 * (a - 1), at[0] > 0.6


SLOW = [b if b == "numpy" else pytest.param(b, marks=pytest.mark.slow) for b in BACKENDS]


@pytest.mark.parametrize("via", [rc.jax_fn, rc.import_jax])
@pytest.mark.parametrize("step", [paid, unpaid])
@pytest.mark.parametrize("episodes", ["absorbing", "autoreset"])
@pytest.mark.parametrize("backend", SLOW)
def test_episodes_are_those_of_a_loop(
    step: Callable[..., Any], episodes: str, via: Callable[..., Any], backend: str
) -> None:
    with (ctx := rc.Context(dims="b i t")) as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.traceable(
            *(lambda u: u - 0.5, step),
            **{"observation": rc.f32[1], "actions": 3, "reward": 2.0},
            **{"episodes": episodes, "via": via},
        )
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        a = rc.randint(1, 3, (b, i, t))
        o[b, i, t + 1], r, d = env.step(a)
        rc.output(o=o, a=a, r=r, d=d, final=env.last.final_o, live=env.last.live)
    program = ctx.compile({B: 3, I: 3, T: 8}, backend=backend)
    got = program.run(seed=3)
    assert program.memory.nbytes > 0
    ended = 0
    for row in range(3):
        for k in range(3):
            for n in range(8):
                at, over = got["o"][row, k, n], bool(got["d"][row, k, n - 1]) and n > 0
                live = not (over and episodes == "absorbing")
                assert got["live"][row, k, n] == live
                if not live:
                    assert got["r"][row, k, n] == 0.0
                    assert got["d"][row, k, n]
                    np.testing.assert_array_equal(got["final"][row, k, n], at)
                    continue
                after, *reward, done = step(at, got["a"][row, k, n])
                np.testing.assert_allclose(got["final"][row, k, n], after, rtol=1e-6)
                np.testing.assert_allclose(
                    got["r"][row, k, n], reward[0] if reward else 2.0, rtol=1e-5
                )
                assert got["d"][row, k, n] == done
                ended += done
                following = got["o"][row, k, n + 1] if n < 7 else None
                if n == 7 and episodes == "autoreset" and k < 2:
                    following = got["o"][row, k + 1, 0]  # an iteration goes on
                if following is not None and not (done and episodes == "autoreset"):
                    np.testing.assert_allclose(following, after, rtol=1e-6)
                elif following is not None:
                    assert abs(following[0]) <= 0.5  # a new episode
    assert ended > 3


def test_actions_that_are_numbers() -> None:
    with (ctx := rc.Context(dims="b i t")) as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.traceable(
            *(lambda u: u - 0.5, lambda s, a: (s + a, jnp.abs(s[0]) > 1)),
            **{"observation": rc.f32[2], "actions": rc.f32[2], "episodes": "autoreset"},
        )
        assert env.actions is None
        policy = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[4]).build()
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = policy(o)
        o[b, i, t + 1], _, d = env.step(pi.sample())
        rc.output(o=o, d=d, final=env.last.final_o, best=pi.mode())
    got = ctx.run({B: 2, I: 2, T: 5}, backend="numpy")
    assert got["best"].shape == got["final"].shape == (2, 2, 5, 2)
    going = ~got["d"][:, :, :-1]
    np.testing.assert_array_equal(got["o"][:, :, 1:][going], got["final"][:, :, :-1][going])


def test_the_last_step_is_written_first() -> None:
    with rc.Context(dims="b i t") as ((b, B), (i, I), (t, T)):
        host = rc.rl.env.make("CartPole-v1")
        traceable = rc.rl.env.traceable(
            *(lambda u: u, unpaid), **{"observation": rc.f32[1], "actions": 3}
        )
        for env in (host, traceable):
            env.reset(domain=(b, i))
            with pytest.raises(RecurraError, match=r"env.last is read before env.step is written"):
                env.last  # noqa: B018
