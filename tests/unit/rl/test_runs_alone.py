"""Runs are functions of their seed, also of environments that remember; spaces are kept to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import recurra as rc
from recurra.errors import RecurraError


class Counting(gym.Env[Any, Any]):
    """Shows numbers of its space at first, then others."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: gym.Space[Any], first: Any, then: Any):
        self.observation_space, self.first, self.then = space, np.array(first), np.array(then)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action: Any) -> Any:
        return self.then, 1.0, False, False, {}


PAIRS = gym.spaces.MultiDiscrete([3, 2])
gym.register("Counting-v0", entry_point=Counting, disable_env_checker=True)


def stepped(env: Any, **options: Any) -> dict[str, Any]:
    with (ctx := rc.Context(dims="b t")) as ((b, B), (t, T)):
        o = rc.like(env.observation_space, domain=(b, t))
        o[b, 0] = env.reset(domain=(b,))
        o[b, t + 1], _, _ = env.step(rc.value(t % 2, "i32"))
        rc.output(o=o)
    program = ctx.compile({B: 2, T: 4}, backend="numpy", **options)
    return {"first": program.run(seed=1)["o"], "again": program.run(seed=1)["o"]}


@pytest.mark.parametrize("episodes", ["absorbing", "autoreset"])
def test_wrappers_begin_anew_with_every_run(episodes: str) -> None:
    """Also where rows take turns, by an action that is the same for all of them."""
    wrappers = [gym.wrappers.NormalizeObservation]
    given = {"vectorization_mode": "sync", "wrappers": wrappers, "episodes": episodes}
    found = stepped(rc.rl.env.make("CartPole-v1", **given))
    assert np.ptp(found["first"]) > 0.0
    np.testing.assert_array_equal(found["first"], found["again"])
    turns = stepped(rc.rl.env.make("CartPole-v1", **given), groups=2)
    np.testing.assert_array_equal(turns["first"], turns["again"])
    np.testing.assert_array_equal(turns["first"], found["first"])


@pytest.mark.parametrize(
    ("space", "first", "then", "told"),
    [
        (gym.spaces.Discrete(4, start=1), 1, 0, "is 0\n  its values are 1 to 4; row 0"),
        (gym.spaces.Discrete(2), 1, 2, "is 2\n  its values are 0 to 1; row 0"),
        (gym.spaces.Discrete(2), -1, 0, "is -1\n  its values are 0 to 1; row 0"),
        (PAIRS, [2, 1], [2, 2], "is 2\n  its values are 0 to 1; row 0[1]"),
        (PAIRS, [0, 0], [-1, 0], "is -1\n  its values are 0 to 2; row 0[0]"),
    ],
)
def test_what_a_space_does_not_have(space: Any, first: Any, then: Any, told: str) -> None:
    env = rc.rl.env.make("Counting-v0", space=space, first=first, then=then)
    with pytest.raises(RecurraError) as refused:
        stepped(env)
    assert f"an observation of {space} {told}" in str(refused.value)


def test_a_policy_is_given_all_parts(tmp_path: Path) -> None:
    space = gym.spaces.Dict({"at": gym.spaces.Box(0.0, 1.0, (2,)), "way": gym.spaces.Discrete(3)})
    first = {"at": np.zeros(2, np.float32), "way": 0}

    class Both(Counting):
        def __init__(self) -> None:
            super().__init__(space, 0, 0)
            self.first = self.then = first  # type: ignore[assignment]

    gym.register("Both-v0", entry_point=Both, disable_env_checker=True)
    with (ctx := rc.Context(dims="b i t")) as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("Both-v0")
        policy = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[4]).build()
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = policy(o)
        a = pi.sample()
        o[b, i, t + 1], r, _ = env.step(a)
        (-pi.log_prob(a) * r)[0:B, i, 0:T].mean().backward()
        rc.optim.SGD(policy.params, lr=0.1).step()
        rc.log(reward=r[0:B, i, 0:T].sum())
    ctx.run({B: 2, I: 2, T: 3}, backend="numpy", folder=tmp_path / "run")
    player = rc.rl.load(tmp_path / "run")
    assert player.act(first) in (0, 1)
    for wrong in (np.zeros(4), {"at": np.zeros(2)}, 3):
        with pytest.raises(RecurraError, match=r"the observation has no \['"):
            player.act(wrong)
    with pytest.raises(RecurraError, match=r"3 is no observation of this policy\n(.*\n)+.*give it"):
        player.act({"at": np.zeros(2), "way": 3})
