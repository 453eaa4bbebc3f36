"""check="nan" names the environment, the row and the step of a reward or observation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import recurra as rc
from recurra.cli import main
from recurra.errors import NotFiniteError


class Broken(gym.Env[Any, Any]):
    """Rows whose seeds are odd go wrong in one step."""

    def __init__(self, kind: str):
        self.kind = kind
        box = gym.spaces.Box(-9.0, 9.0, (2,), np.float32)
        parts = gym.spaces.Dict({"near": box, "far": box})
        self.observation_space = parts if kind == "part" else box
        self.action_space = gym.spaces.Discrete(2)
        self.steps, self.seed = 0, 0

    def seen(self) -> Any:
        wrong = self.steps == 5 and self.seed % 2
        value = np.inf if self.kind == "infinite" else np.nan
        x = np.array([0.5, value if wrong and self.kind != "reward" else 1.0], np.float32)
        return {"near": np.ones(2, np.float32), "far": x} if self.kind == "part" else x

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed = self.seed if seed is None else seed
        self.steps = 5 if self.kind == "reset" else 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        wrong = self.kind == "reward" and self.steps == 5 and self.seed % 2
        return self.seen(), np.inf if wrong else 1.0, False, False, {}


for _kind in ("reward", "flat", "part", "reset", "infinite"):
    gym.register(
        f"Broken-{_kind}-v0",
        entry_point=f"{__name__}:Broken",
        kwargs={"kind": _kind},
        disable_env_checker=True,  # it warns of NaN
    )


def told(kind: str, backend: str, episodes: str, of_all: bool = True, **options: Any) -> str:
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        make = {"episodes": episodes, "vectorization_mode": "sync"}
        env = rc.rl.env.make(f"Broken-{kind}-v0", **make)
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        x = o["far"] if kind == "part" else o
        o[b, i, t + 1], r, _ = env.step((x.sum() > 0.0).cast("i32"))
        score = r + x.sum() if of_all else r
        rc.log(score=score[0:B, i, 0:T].mean())
    program = ctx.compile({B: 2, I: 2, T: 8}, backend=backend, check="nan", **options)
    with pytest.raises(NotFiniteError) as e:
        program.run(seed=0)
    return str(e.value)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("kind", ["flat", "part"])
def test_an_observation_by_which_an_action_is_chosen_and_nothing_else(kind: str, backend: str):
    text = told(kind, backend, "autoreset", of_all=False)
    assert ".step gives nan as the observation" in text.splitlines()[0]


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("episodes", ["absorbing", "autoreset"])
def test_a_reward(backend: str, episodes: str):
    text = told("reward", backend, episodes)
    assert "Broken-reward-v0(" in text.splitlines()[0]
    assert ".step gives inf as the reward of row" in text.splitlines()[0]
    assert text.splitlines()[0].endswith("i=0, t=4")
    assert "it reaches score is inf at i=0" in text


def test_rows_are_told_apart():
    """Seeds of neighboring rows follow each other: one of two is odd."""
    first = told("reward", "numpy", "absorbing").splitlines()[0]
    row = int(first.split(" of row ")[1].split(" ")[0])
    assert row in (0, 1)
    assert f"at b={row}, i=0, t=4" in first


def test_an_observation_and_its_parts():
    assert ".step gives nan as the observation of row" in told("flat", "numpy", "absorbing")
    assert ".step gives nan as the observation['far'] of row" in told("part", "numpy", "autoreset")


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("read", ["tanh", "ratio"])
def test_an_observation_that_is_infinite(backend: str, read: str):
    """It is named where no result shows it, and where operators make NaN of it."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("Broken-infinite-v0", vectorization_mode="sync")
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        x = o.tanh() if read == "tanh" else o.sum() / o.square().sum()
        o[b, i, t + 1], r, _ = env.step((x.sum() > 0.0).cast("i32"))
        rc.log(score=(r + x.sum())[0:B, i, 0:T].mean())
    with pytest.raises(NotFiniteError) as e:
        ctx.compile({B: 2, I: 2, T: 8}, backend=backend, check="nan").run(seed=0)
    first = str(e.value).splitlines()[0]
    assert ".step gives inf as the observation of row" in first
    assert first.endswith("i=0, t=4, element [1]")
    assert ("it reaches score is nan" in str(e.value)) == (read == "ratio")


def test_the_first_observation():
    text = told("reset", "numpy", "absorbing")
    assert ".reset gives nan as the observation of row" in text
    assert "element [1]" in text.splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "reinforce"])
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], algo: str):
    small = ["--rows", "2", "--steps", "8", "--iterations", "2", "--hidden", "4"]
    small += ["--epochs", "1", "--minibatches", "1"] if algo == "ppo" else []
    env = ["--env", f"{__name__}:Broken-reward-v0", "--check", "nan", "--backend", "numpy"]
    assert main(["train", algo, *small, *env, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "as the reward of row" in said
    assert "t=4" in said
