"""Host calls that are made one by one where a batch is meant: told with the dim, and a way out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.errors import ScheduleError


def cloned(**options: Any) -> tuple[rc.Context, dict[Any, int]]:
    """A policy that learns what a function of the host would do."""
    with (ctx := rc.Context(dims="b i t")) as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("CartPole-v1", episodes="autoreset", vectorization_mode="sync")
        policy = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[4]).build()
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = policy(o)
        o[b, i, t + 1], _, _ = env.step(pi.sample())
        if options.get("batch"):
            options["batch"] = (b,)
        want = rc.call(lambda o: (o[..., 2] > 0).astype(np.int32), rc.i32, o, **options)
        (-pi.log_prob(want)[0:B, i, 0:T].mean()).backward()
        rc.optim.SGD(policy.params, lr=0.1).step()
        rc.output(want=want, o=o)
    return ctx, {B: 2, I: 2, T: 3}


def test_a_call_of_one_row_at_a_time_is_told() -> None:
    ctx, sizes = cloned()
    with pytest.raises(ScheduleError) as refused:
        ctx.compile(sizes, backend="numpy")
    text = str(refused.value)
    assert "the call of lambda is made at one point of (b, i, t) after the other" in text
    assert "is of all b   --> " in text
    assert "batch=(b,) in rc.call(..)" in text
    assert "pure=True" in text
    assert not hasattr(refused.value, "__notes__")  # no pass of ours is to blame


@pytest.mark.parametrize("options", [{"batch": True}, {"pure": True}])
def test_the_ways_out(options: dict[str, Any]) -> None:
    ctx, sizes = cloned(**options)
    got = ctx.compile(sizes, backend="numpy").run(seed=1)
    np.testing.assert_array_equal(got["want"], got["o"][..., 2] > 0)


def seeds(**options: Any) -> tuple[rc.Context, dict[Any, int]]:
    """Runs of several seeds, each with rows of its own, in one program."""
    with (ctx := rc.Context(dims="s b i t")) as ((s, S), (b, B), (i, I), (t, T)):
        env = rc.rl.env.make("CartPole-v1", episodes="autoreset", vectorization_mode="sync")
        policy = rc.nn.Linear(4, 2, domain=(s, i))
        o = rc.like(env.observation_space, domain=(s, b, i, t))
        chosen = {k: b for k in options}
        o[s, b, i, 0] = env.reset(domain=(s, b, i), **chosen)
        pi = rc.nn.Categorical(policy(o))
        a = pi.sample()
        o[s, b, i, t + 1], r, _ = env.step(a)
        (-(r * pi.log_prob(a))[s, 0:B, i, 0:T].mean()).backward()
        rc.optim.SGD(policy.params, lr=0.1).step()
        rc.output(o=o, w=policy.weight)
    return ctx, {S: 2, B: 2, I: 2, T: 3}


def test_rows_of_another_dim_than_those_of_the_parameters() -> None:
    ctx, sizes = seeds()
    with pytest.raises(ScheduleError, match=r"all of one b before the next, but W is of all b"):
        ctx.compile(sizes, backend="numpy")
    ctx, sizes = seeds(rows="b")
    got = ctx.compile(sizes, backend="numpy").run(seed=1)
    assert got["o"].shape == (2, 2, 2, 3, 4)
    assert not np.array_equal(got["w"][0, 1], got["w"][1, 1])


def test_another_cycle_is_told_without_calls() -> None:
    """Each waits for a later point of the other: there is a call, but it has no part in it."""
    with (ctx := rc.Context(dims="b t")) as ((b, B), (t, T)):
        seen = rc.call(lambda k: np.float32(k), rc.f32, rc.value(b + t))
        x, y = rc.like(rc.f32, (b, t)), rc.like(rc.f32, (b, t))
        x[b, 0] = 1.0
        x[b, t + 1] = y[b, rc.min(t + 2, T - 1)] + seen
        y[b, 0] = 1.0
        y[b, t + 1] = x + y
        rc.output(y=y)
    with pytest.raises(ScheduleError) as refused:
        ctx.compile({B: 2, T: 5}, backend="numpy")
    assert "rc.call" not in str(refused.value)
