"""Environments that fail, or give what they should not, are told without a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from recurra import cli
from recurra.rl.gym_spaces import odd_part

BOX = "gymnasium.spaces.Box(-np.inf, np.inf"
GOOD = np.zeros(3, np.float32)
RESETS: dict[str, Any] = {
    "raises": ValueError("no reset"),
    "none": None,
    "observation": GOOD,
    "shape": (np.zeros(4, np.float32), {}),
    "text": ("abc", {}),
}
STEPS: dict[str, Any] = {
    "raises": RuntimeError("bad step"),
    "none": None,
    "four": (GOOD, 0.0, False, {}),
    "text": (GOOD, "x", False, False, {}),
    "rewards": (GOOD, np.zeros(2), False, False, {}),
    "shape": (np.zeros((3, 1), np.float32), 0.0, False, False, {}),
    "objects": (np.array([None] * 3), 0.0, False, False, {}),
}


def given(x: Any) -> Any:
    if isinstance(x, Exception):
        raise x
    return x


class Odd(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata: dict[str, Any] = {}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, reset: str = "", step: str = "", make: bool = True):
        self.bad = RESETS.get(reset, (GOOD, {})), STEPS.get(step, (GOOD, 1.0, True, False, {}))
        if not make:
            raise ValueError("cannot be made")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return given(self.bad[0])

    def step(self, action: Any) -> Any:
        return given(self.bad[1])


@pytest.fixture
def odd() -> Iterator[str]:
    names = [f"odd/{w}-{k}" for w, ks in (("reset", RESETS), ("step", STEPS)) for k in ks]
    for name in names:
        word, kind = name[4:].split("-")
        gym.register(f"{name}-v0", Odd, kwargs={word: kind})
    gym.register("odd/make-v0", Odd, kwargs={"make": False})
    gym.register("odd/fine-v0", Odd)
    yield "odd"
    for name in (*names, "odd/make", "odd/fine"):
        del gym.registry[f"{name}-v0"]


def train(algo: str, out: Path, *more: str) -> int:
    few = ["--rows", "2", "--steps", "4", "--iterations", "2", "--hidden", "4"]
    return cli.main(["train", algo, *few, "--backend", "numpy", "--out", str(out), *more])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("algo", ["ppo", "reinforce"])
@pytest.mark.parametrize(
    "name", ["make", *(f"reset-{k}" for k in RESETS), *(f"step-{k}" for k in STEPS)]
)
def test_what_fails_is_told(
    odd: str, name: str, algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert train(algo, tmp_path, "--env", f"{odd}/{name}-v0") == 2
    said = capsys.readouterr().err
    assert f"{odd}/{name}-v0" in said
    assert f" fails in {name.split('-')[0]}\n  --> " in said
    if name.endswith("shape"):
        shape = {"reset": (4,), "step": (3, 1)}[name.split("-")[0]]
        assert f"it gives an observation of shape {shape}, and its observation_space is Box" in said
        assert f"(3,), float32)\n  hint: write the shape that it has: {BOX}, {shape})" in said
    else:
        assert "check_env(env) says what an environment must give" in said
    if name.endswith(("raises", "make", "shape")):
        assert "test_odd_envs.py:" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_environment_that_ends_at_once_is_fine(odd: str, tmp_path: Path):
    assert train("ppo", tmp_path, "--env", f"{odd}/fine-v0", "--minibatches", "1") == 0
    (metrics,) = tmp_path.glob("*/metrics.jsonl")
    assert json.loads(metrics.read_text().splitlines()[-1])["charts/episodic_return"] == 1.0


@pytest.mark.filterwarnings("ignore")
def test_a_part_of_a_wrong_shape_is_named():
    box, two = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
    space = gym.spaces.Dict({"at": box, "both": gym.spaces.Tuple((two, box))})
    good = {"at": GOOD, "both": (1, GOOD)}
    assert odd_part(space, good) is None
    assert odd_part(space, {**good, "both": (1, GOOD[:2])}) == ("['both'][1]", (2,), box)
    assert odd_part(space, {**good, "both": (GOOD, GOOD)}) == ("['both'][0]", (3,), two)
