"""Recipes and networks take every space of Gymnasium, or say what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import recurra as rc
from recurra.cli import main
from recurra.errors import NoSuchName, RecurraError
from recurra.report.runs import RunFolder
from recurra.rl import gym_spaces

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
SEEN: dict[str, Any] = {
    "bytes": spaces.Box(0, 255, (3, 2, 2), np.uint8),
    "wide": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    "whole": spaces.Box(-5, 5, (2,), np.int64),
    "class": spaces.Discrete(4, start=2),
    "counts": spaces.MultiDiscrete([3, 2]),
    "flags": spaces.MultiBinary(3),
    "tuple": spaces.Tuple((BOX, spaces.Discrete(2))),
    "dict": spaces.Dict({"a": BOX, "b": spaces.Dict({"c": spaces.MultiBinary((2, 2))})}),
}
TAKEN: dict[str, Any] = {
    "class": spaces.Discrete(3, start=-1),
    "normal": BOX,
    "matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    "scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "counts": spaces.MultiDiscrete([3, 2]),
    "table": spaces.MultiDiscrete(np.array([[3, 2], [2, 4]])),
    "flags": spaces.MultiBinary(3),
    "tuple": spaces.Tuple((BOX, spaces.Discrete(2))),
    "dict": spaces.Dict({"go": spaces.Discrete(2), "how": BOX, "far": BOX}),
}


class Any_(gym.Env[Any, Any]):
    """Shows what its space has, takes what its own has, if that is a value of it."""

    def __init__(self, seen: str, taken: str):
        free, none = spaces.Box(-5, 5, (2,), np.int32), spaces.Box(-1.0, 1.0, (0,), np.float32)
        self.observation_space = {**SEEN, "box": BOX, "text": spaces.Text(3), "none": none}[seen]
        self.action_space = {**TAKEN, "whole": free, "none": none}[taken]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.fits(self.action_space, action), action
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 3, False, {}

    def fits(self, space: Any, x: Any) -> bool:
        """Numbers are drawn of a normal, beyond the bounds of a box."""
        if isinstance(space, spaces.Dict):
            return all(self.fits(s, x[k]) for k, s in space.spaces.items())
        if isinstance(space, spaces.Tuple):
            return all(self.fits(s, y) for s, y in zip(space.spaces, x, strict=True))
        if isinstance(space, spaces.Box):
            return np.shape(x) == space.shape
        return space.contains(x)


gym.register("AnySpace-v0", entry_point=f"{__name__}:Any_", disable_env_checker=True)


def make(seen: str, taken: str, **options: Any) -> Any:
    return rc.rl.env.make(
        "AnySpace-v0", seen=seen, taken=taken, vectorization_mode="sync", **options
    )


CASES = [
    *(("reinforce", seen, "class") for seen in SEEN),
    *(("ppo", "box", taken) for taken in TAKEN),
    ("ppo", "dict", "class"),
    ("reinforce", "box", "tuple"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "seen", "taken"), CASES)
def test_training(tmp_path: Path, algo: str, seen: str, taken: str):
    """From the command to an action of the policy that it has made."""
    id_ = f"Any-{seen}-{taken}-v0"
    kwargs = {"seen": seen, "taken": taken}
    if id_ not in gym.registry:
        gym.register(id_, f"{__name__}:Any_", kwargs=kwargs, disable_env_checker=True)
    small = ["--rows", "2", "--steps", "4", "--iterations", "2", "--hidden", "4"]
    few = ["--epochs", "1", "--minibatches", "1"] if algo == "ppo" else []
    out = ["--out", str(tmp_path), "--backend", "numpy", "--env", id_]
    assert main(["train", algo, *small, *few, *out]) == 0
    (folder,) = tmp_path.iterdir()
    assert all(np.isfinite(x) for row in RunFolder(folder).rows() for x in row.values())
    policy, env = rc.rl.load(folder), Any_(seen, taken)
    o, _ = env.reset(seed=1)
    for greedy in (False, True):
        env.step(policy.act(o, greedy=greedy))
    if seen not in ("tuple", "dict"):
        batch = np.stack([o, o])
        made = policy.act(batch, greedy=True)
        if taken not in ("tuple", "dict"):
            np.testing.assert_allclose(made[0], policy.act(o, greedy=True), rtol=1e-4)


def test_joint_probabilities_are_those_of_the_parts():
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        env = make("box", "dict")
        net = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[]).build()
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = net(o)
        a = pi.sample()
        o[b, i, t + 1], _, _ = env.step(a)
        W, c, _ = net.params
        parts = {k: a[k] for k in ("go", "how", "far")}
        rc.output(o=o, p=pi.log_prob(a), h=pi.entropy(), W=W, c=c, **parts)
    got = ctx.run({B: 2, I: 1, T: 3}, backend="numpy")
    y = got["o"] @ got["W"][0] + got["c"][0]
    keys = list(TAKEN["dict"].spaces)  # two outputs each
    at = {k: 2 * n for n, k in enumerate(keys)}
    logits = y[..., at["go"] : at["go"] + 2]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    want = np.take_along_axis(log_p, got["go"][..., None], -1)[..., 0]
    for k in ("how", "far"):
        z = got[k] - y[..., at[k] : at[k] + 2]
        want = want - (0.5 * z**2 + 0.5 * np.log(2 * np.pi)).sum(-1)
    np.testing.assert_allclose(got["p"], want, atol=1e-4)
    entropy = -(np.exp(log_p) * log_p).sum(-1) + 4 * 0.5 * (1 + np.log(2 * np.pi))
    np.testing.assert_allclose(got["h"], entropy, atol=1e-4)


def actor_critic(env: Any, i: Any) -> Any:
    return rc.rl.ActorCritic(env, hidden=(4,), domain=(i,))


def builder(env: Any, i: Any) -> Any:
    return rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[4])


@pytest.mark.parametrize("network", [actor_critic, builder])
def test_what_no_distribution_gives(network: Any):
    with rc.Context(dims="b i t") as ((_, _), (i, _), (_, _)):
        env = make("box", "whole")
        with pytest.raises(RecurraError) as e:
            network(env, i)
    assert "no distribution gives actions i32[2]" in str(e.value)
    assert "hint: give the environment a wrapper" in str(e.value)
    assert "test_rl_spaces.py" in str(e.value)


@pytest.mark.parametrize("network", [actor_critic, builder])
@pytest.mark.parametrize("kind", ["observation", "action"])
def test_a_space_without_a_number(network: Any, kind: str):
    with rc.Context(dims="b i t") as ((_, _), (i, _), (_, _)):
        env = make("none", "class") if kind == "observation" else make("box", "none")
        with pytest.raises(RecurraError) as e:
            network(env, i)
    assert f"the {kind} space has no {kind}s\n" in str(e.value)
    assert "it is f32[0], which holds no number" in str(e.value)


def test_what_is_no_tensor():
    with rc.Context(dims="b i t"), pytest.raises(RecurraError) as e:
        make("text", "class")
    assert "the observation space of AnySpace-v0" in str(e.value)
    assert "hint: make_vec(wrappers=[...])" in str(e.value)


@pytest.mark.parametrize(
    ("seen", "shape", "dtype", "n"),
    [
        ("box", (2,), "f32", None),
        ("bytes", (3, 2, 2), "u8", None),
        ("class", (4,), "f32", 4),
        ("counts", (2,), "i32", None),
        ("flags", (3,), "bool", None),
        ("tuple", None, None, None),
        ("dict", None, None, None),
    ],
)
def test_a_space_says_its_shape_and_type_as_gymnasium_does(
    seen: str, shape: object, dtype: object, n: int | None
):
    space = gym_spaces.convert_space("Any", "observation", Any_(seen, "class").observation_space)
    assert (space.shape, space.dtype) == (shape, dtype)
    assert getattr(space, "n", None) == n
    if n is None:
        with pytest.raises(NoSuchName, match="the space has no n"):
            _ = space.n


def test_actions_are_counted():
    env = rc.rl.env.make("CartPole-v1")
    assert (env.action_space.shape, env.action_space.dtype, env.action_space.n) == ((), "i32", 2)


def test_the_names_of_the_module_are_listed():
    assert set(rc.rl.__all__) <= set(dir(rc.rl))
