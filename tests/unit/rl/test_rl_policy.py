"""rc.rl.load: a policy acts by itself as it did in the program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import recurra as rc
from recurra.checkpoint import checkpoint
from recurra.cli import main
from recurra.errors import RecurraError

B, I, T = 3, 2, 12


class Walk(gym.Env[Any, Any]):
    """A point on a line, pushed by its action; an episode has four to seven steps."""

    def __init__(self, kind: str = "flat"):
        box = gym.spaces.Box(-9.0, 9.0, (2,), np.float64)
        self.kind = kind
        self.observation_space = {
            "flat": box,
            "dict": gym.spaces.Dict({"at": box, "turn": gym.spaces.Discrete(3, start=1)}),
        }[kind]
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def seen(self) -> Any:
        at = np.array([self.x, self.steps / 7])
        return at if self.kind == "flat" else {"at": at, "turn": 1 + self.steps % 3}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.steps = float(self.np_random.normal()), 0
        self.length = int(self.np_random.integers(4, 8))
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.x, self.steps = 0.9 * self.x + float(action[0]), self.steps + 1
        return self.seen(), -abs(self.x), self.steps == self.length, False, {}


for _kind in ("flat", "dict"):
    gym.register(f"PolicyWalk-{_kind}-v0", entry_point=f"{__name__}:Walk", kwargs={"kind": _kind})

Dims = tuple[Any, Any, Any]
Acting = Callable[[Any, Dims, Any], Any]


def by_lstm(o: Any, dims: Dims, T_: Any) -> Any:
    h = rc.nn.LSTM(2, 5, domain=(dims[1],))(o)
    return rc.nn.Linear(5, 1, domain=(dims[1],))(h).tanh()


def by_frames(o: Any, dims: Dims, T_: Any) -> Any:
    x = rc.rl.frames(o, 3)
    return rc.nn.Linear(6, 1, domain=(dims[1],))(x.reshape(6)).tanh()


def by_the_last_action(o: Any, dims: Dims, T_: Any) -> Any:
    b, i, t = dims
    before = rc.like(rc.f32[1], domain=dims, name="before")
    before[b, i, 0] = rc.constant([0.5])
    a = rc.nn.Linear(3, 1, domain=(i,))(rc.concat([o, before])).tanh()
    before[b, i, t + 1] = a
    return a


def acted(folder: Path, acting: Acting, episodes: str, kind: str = "flat") -> Any:
    """What a program sees and does that learns nothing, and its policy."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B_), (i, I_), (t, T_)):
        env = rc.rl.env.make(f"PolicyWalk-{kind}-v0", episodes=episodes, vectorization_mode="sync")
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        a = acting(o, (b, i, t), T_)
        o[b, i, t + 1], r, d = env.step(a)
        parts = {"o": o} if kind == "flat" else {k: o[k] for k in ("at", "turn")}
        rc.output(a=a, d=d, **parts)
        rc.log(r=r[0:B_, i, 0:T_].sum())
    program = ctx.compile({B_: B, I_: I, T_: T}, backend="numpy")
    return program.run(seed=3, folder=folder), rc.rl.load(folder)


@pytest.mark.parametrize("acting", [by_lstm, by_frames, by_the_last_action])
def test_what_is_remembered_is_carried(tmp_path: Path, acting: Acting):
    """In a batch, and for each row alone."""
    got, policy = acted(tmp_path / "run", acting, "absorbing")
    assert policy.is_recurrent
    for i in range(I):
        policy.reset()
        for t in range(T):
            np.testing.assert_allclose(policy.act(got["o"][:, i, t]), got["a"][:, i, t], atol=1e-6)
    for b in range(B):
        policy.reset()
        for t in range(T):
            np.testing.assert_allclose(policy.act(got["o"][b, 0, t]), got["a"][b, 0, t], atol=1e-6)


@pytest.mark.parametrize(
    ("place", "saved"),
    [
        (lambda t, T_: rc.max(t - 2, 0), True),
        (lambda t, T_: rc.min(t, T_ - 1), True),  # it is t
        (lambda t, T_: 5 * (t // 5), False),  # t at every fifth step, and at 0, 500 and 1000
        (lambda t, T_: t // 2, False),
        (lambda t, T_: 0 * t, False),
    ],
)
def test_an_observation_of_a_fixed_number_of_steps_ago(tmp_path: Path, place: Any, saved: bool):
    def by_an_earlier_one(o: Any, dims: Dims, T_: Any) -> Any:
        b, i, t = dims
        early = rc.like(rc.f32[2], domain=dims, name="early")
        early[b, i, t] = o[b, i, place(t, T_)]
        return rc.nn.Linear(4, 1, domain=(i,))(rc.concat([o, early])).tanh()

    if not saved:
        with pytest.raises(RecurraError, match="not saved"):
            acted(tmp_path / "run", by_an_earlier_one, "absorbing")
        return
    got, policy = acted(tmp_path / "run", by_an_earlier_one, "absorbing")
    for t in range(T):
        np.testing.assert_allclose(policy.act(got["o"][:, 0, t]), got["a"][:, 0, t], atol=1e-6)


def test_an_episode_begins_in_some_rows(tmp_path: Path):
    """With autoreset, where the program forgets at the end of an episode."""

    def forgetful(o: Any, dims: Dims, T_: Any) -> Any:
        b, i, t = dims
        cell = rc.nn.GRUCell(2, 4, domain=(i,))
        h = rc.like(rc.f32[4], domain=dims, name="h")
        h[b, 0, 0] = np.zeros(4, np.float32)
        new = cell(o, h)
        env_done = rc.like(rc.boolean, domain=dims, name="over")
        carried = rc.where(env_done, 0.0, new)
        h[b, i, 0] = carried[b, i - 1, T_ - 1]
        h[b, i, t + 1] = carried
        forgetful.over = env_done  # type: ignore[attr-defined]
        return rc.nn.Linear(4, 1, domain=(i,))(h).tanh()

    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B_), (i, I_), (t, T_)):
        env = rc.rl.env.make("PolicyWalk-flat-v0", episodes="autoreset", vectorization_mode="sync")
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        a = forgetful(o, (b, i, t), T_)
        o[b, i, t + 1], r, d = env.step(a)
        forgetful.over[b, i, t] = d  # type: ignore[attr-defined]
        rc.output(a=a, o=o, d=d)
        rc.log(r=r[0:B_, i, 0:T_].sum())
    got = ctx.run({B_: B, I_: I, T_: T}, backend="numpy", folder=tmp_path / "run")
    policy = rc.rl.load(tmp_path / "run")
    begins = np.ones(B, bool)
    for i in range(I):
        for t in range(T):
            made = policy.act(got["o"][:, i, t], begins=begins)
            np.testing.assert_allclose(made, got["a"][:, i, t], atol=1e-6)
            begins = got["d"][:, i, t]
    assert got["d"].any()


def test_observations_of_several_parts(tmp_path: Path):
    """They are given as the environment has them: f64, and classes counted from 1."""

    def acting(o: Any, dims: Dims, T_: Any) -> Any:
        at, turn = (rc.nn.Linear(n, 1, domain=(dims[1],)) for n in (2, 3))
        return (at(o["at"]) + turn(o["turn"])).tanh()

    got, policy = acted(tmp_path / "run", acting, "absorbing", "dict")
    assert not policy.is_recurrent
    at, turn = got["at"], 1 + got["turn"].argmax(-1)
    for t in range(T):
        seen = {"at": at[:, 0, t].astype(np.float64), "turn": turn[:, 0, t]}
        np.testing.assert_allclose(policy.act(seen), got["a"][:, 0, t], atol=1e-6)
        one = {"at": seen["at"][1], "turn": int(seen["turn"][1])}
        np.testing.assert_allclose(policy.act(one), got["a"][1, 0, t], atol=1e-6)
    for odd in (0, 4, 2.0, "2", np.eye(3, dtype=np.float32)[1]):
        why = refused(lambda odd=odd: policy.act({"at": np.zeros(2), "turn": odd}))
        assert "a whole number from 1 to 3, as the environment gives it" in why


def trained(out: Path, *options: str) -> Path:
    small = ["--rows", "2", "--steps", "8", "--iterations", "3", "--backend", "numpy"]
    assert main(["train", *options, *small, "--out", str(out)]) == 0
    (folder,) = out.iterdir()
    return folder


@pytest.fixture(scope="module")
def of_ppo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of PPO with networks of its usual size; it moves far in every iteration."""
    options = "--hidden 64 64 --lr 0.03 --epochs 2 --minibatches 2"
    return trained(tmp_path_factory.mktemp("ppo"), "ppo", *options.split())


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "reinforce"])
def test_what_training_has_learned(tmp_path: Path, algo: str, request: pytest.FixtureRequest):
    """The parameters are the last ones, and draws come as often as the softmax says."""
    if algo == "ppo":
        folder = request.getfixturevalue("of_ppo")
    else:
        folder = trained(tmp_path, algo, "--hidden", "8", "8", "--lr", "0.1")
    policy = rc.rl.load(folder, seed=5)
    state = checkpoint.load(folder / "checkpoints").arrays
    mark = "a" if algo == "ppo" else ""
    w1, b1, w2, b2, w3, b3 = (state[f"state/{p}{mark}{k}_next"] for k in (1, 2, 3) for p in "Wb")
    o = np.array([[0.1, -0.5, 0.02, 0.3], [0.0, 0.7, -0.1, -0.9]], np.float32)
    logits = np.tanh(np.tanh(o @ w1 + b1) @ w2 + b2) @ w3 + b3
    assert np.abs(logits[:, 0] - logits[:, 1]).min() > 0.01
    np.testing.assert_array_equal(policy.act(o, greedy=True), logits.argmax(-1))
    assert policy.act(o[0], greedy=True) == logits[0].argmax()
    p = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    drawn = np.array([policy.act(o) for _ in range(4000)])
    np.testing.assert_allclose(drawn.mean(0), p, atol=4 * 0.5 / 4000**0.5)
    alone = np.mean([policy.act(o[1]) for _ in range(4000)])
    assert alone == pytest.approx(p[1], abs=4 * 0.5 / 4000**0.5)
    again = rc.rl.load(folder, seed=5)
    assert len({tuple(int(again.act(o[0])) for _ in range(32)) for _ in range(4)}) == 4
    assert again.act(o[0]).dtype == np.int64  # as CartPole takes it
    assert "CartPole-v1" in repr(again)


def test_normals_are_drawn_with_their_deviation(tmp_path: Path):
    folder = trained(tmp_path, "reinforce", "--env", "Pendulum-v1", "--hidden", "8")
    policy = rc.rl.load(folder)
    o = np.array([1.0, 0.0, 0.5], np.float32)
    mean = policy.act(o, greedy=True)
    assert mean.shape == (1,)
    assert mean.dtype == np.float32
    drawn = np.array([policy.act(o) for _ in range(4000)])
    std = np.exp(checkpoint.load(folder / "checkpoints").arrays["state/log_std_next"])
    np.testing.assert_allclose(drawn.mean(0), mean, atol=4 * std[0] / 4000**0.5)
    np.testing.assert_allclose(drawn.std(0), std, rtol=0.1)
    assert drawn.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize("greedy", [False, True])
def test_an_action_takes_few_calls(of_ppo: Path, greedy: bool):
    """Two layers of 64 take some 10 µs: as many calls as by hand, and a few around them.

    One of these looks for a NaN.
    """
    policy = rc.rl.load(of_ppo)
    o, calls = np.zeros(4, np.float32), list[str]()
    policy.act(o, greedy=greedy)
    sys.setprofile(lambda frame, event, arg: calls.append(event) if "call" in event else None)
    try:
        policy.act(o, greedy=greedy)
    finally:
        sys.setprofile(None)
    assert len(calls) <= 31


def refused(f: Callable[[], Any]) -> str:
    with pytest.raises(RecurraError) as e:
        f()
    return str(e.value)


def test_what_has_no_policy(tmp_path: Path):
    assert "there is no policy at" in refused(lambda: rc.rl.load(tmp_path))
    nothing: Any = None
    assert "None is no folder of a run" in refused(lambda: rc.rl.load(nothing))
    odd: list[Any] = [-1, 1.5]
    for seed in odd:
        assert f"the seed cannot be {seed}" in refused(lambda seed=seed: rc.rl.load("x", seed))

    def all_of_the_past(o: Any, dims: Dims, T_: Any) -> Any:
        b, i, t = dims
        return rc.nn.Linear(2, 1, domain=(i,))(o[b, i, 0 : t + 1].mean(axis=0)).tanh()

    why = refused(lambda: acted(tmp_path / "run", all_of_the_past, "absorbing"))
    assert "holds no policy" in why
    assert "many points at once" in why


@pytest.mark.slow
def test_observations_that_do_not_fit(of_ppo: Path):
    policy = rc.rl.load(of_ppo)
    why = refused(lambda: policy.act(np.zeros(3)))
    assert "has the shape [3]" in why
    assert "shows [4]" in why


def test_observations_that_are_no_numbers(tmp_path: Path):
    """They are refused where NumPy would make NaN of them, or drop a part."""
    policy = acted(tmp_path / "run", by_lstm, "absorbing")[-1]
    for odd in ("abc", [[0.0, 0.0], [1.0]], np.array([None, 1.0]), np.zeros(2, complex)):
        why = refused(lambda odd=odd: policy.act(odd))
        assert "an observation is " in why
        assert "has not only numbers" in why
    action = policy.act(np.ones(2), greedy=True)
    policy.reset()
    tensor = pytest.importorskip("torch").ones(2, requires_grad=True)
    np.testing.assert_array_equal(policy.act(tensor, greedy=True), action)


def by_draws(o: Any, dims: Dims, T_: Any) -> Any:
    two = rc.nn.Linear(2, 2, domain=(dims[1],))(o)
    mean = rc.nn.Linear(2, 1, domain=(dims[1],))(o)
    return rc.nn.Categorical(two).sample().cast("f32") + rc.nn.Gaussian(mean, mean).sample()


@pytest.mark.parametrize("greedy", [False, True])
def test_nothing_is_done_where_an_observation_is_nan(tmp_path: Path, greedy: bool):
    """An inf may be squashed; what an action is drawn from is no number if it was not."""
    squashed = acted(tmp_path / "a", by_the_last_action, "absorbing")[-1]
    assert np.isfinite(squashed.act(np.array([np.inf, 0.0]))).all()
    assert "the observation is NaN at [1]" in refused(lambda: squashed.act([0.0, np.nan]))
    drawn = acted(tmp_path / "b", by_draws, "absorbing")[-1]
    batch = np.zeros((3, 2))
    batch[2, 0] = np.nan
    why = refused(lambda: drawn.act(batch, greedy=greedy))
    assert "the observation is NaN at [2, 0]" in why
    why = refused(lambda: drawn.act([np.inf, -np.inf], greedy=greedy))
    assert "what an action is drawn from is NaN" in why


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_program_that_saves_its_module_saves_its_policy(tmp_path: Path, backend: str):
    """At its end, too: with the parameters of the next iteration, which is not there."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B_), (i, I_), (t, T_)):
        env = rc.rl.env.make("CartPole-v1")
        net = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[4]).build()
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = net(o)
        a = pi.sample()
        o[b, i, t + 1], r, _ = env.step(a)
        (-r * pi.log_prob(a))[0:B_, i, 0:T_].mean().backward()
        rc.optim.SGD(net.params, lr=0.5).step()
        net[i == 2].checkpoint(tmp_path / "run")
        bias = net.params[-1]
        rc.output(bias=bias.next)
    got = ctx.run({B_: 2, I_: 4, T_: 5}, backend=backend, seed=1)
    policy = rc.rl.load(tmp_path / "run")
    assert [x.name for x in checkpoint.saved(tmp_path / "run" / "checkpoints")] == [
        "00000002.safetensors"
    ]
    (last,) = (x for x in policy.values.values() if x.shape == (2,))
    np.testing.assert_array_equal(last, got["bias"][-1])


def test_one_iteration_has_no_policy_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Nothing reads what is learned in the only iteration: it is not computed."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B_), (i, I_), (t, T_)):
        env = rc.rl.env.make("PolicyWalk-flat-v0", vectorization_mode="sync")
        policy = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[4]).build()
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = policy(o)
        a = pi.sample()
        o[b, i, t + 1], r, _ = env.step(a)
        (r * pi.log_prob(a))[0:B_, i, 0:T_].mean().backward()
        rc.optim.Adam(policy.params, lr=0.01).step()
        rc.log(r=r[0:B_, i, 0:T_].sum())
    ctx.compile({B_: B, I_: 1, T_: T}, backend="numpy").run(folder=tmp_path / "one")
    assert " 1/1 " in capsys.readouterr().err
    why = refused(lambda: rc.rl.load(tmp_path / "one"))
    assert "there is one iteration along i, and nothing reads what is learned in it" in why
    assert "hint: compile it for two, {I: 2}" in why
