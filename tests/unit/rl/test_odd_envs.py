"""Environments that fail, or give what they should not, are told without a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import recurra as rc
from documents import env
from recurra import cli
from recurra.rl.episodes import make_episodes
from recurra.rl.gym_spaces import odd_part
from recurra.rl.vector_env import Spec

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
    "exits": SystemExit(0),
}
NUMBERS: dict[str, tuple[Any, str]] = {  # the reward, and how it is told
    "nothing": (None, "None"),
    "text": ("1.5", "'1.5'"),
    "bytes": (b"1", "b'1'"),
    "date": (np.datetime64("2020-01-01"), "np.datetime64('2020-01-01')"),
    "complex": (1j, "1j"),
    "a list": ([1.0], "[1.0]"),
    "an array": (np.zeros(1), "array([0.])"),
    "too large": (10**400, "1000000000"),
}
TRUTHS: dict[str, tuple[Any, str]] = {  # truncated
    "text": ("no", "'no'"),
    "half": (0.5, "0.5"),
    "nan": (float("nan"), "nan"),
    "two": (np.array([True, False]), "array([ True, False])"),
}


MASKED = np.ma.masked_array(GOOD, mask=[False, True, False])
OBSERVATIONS: dict[str, tuple[Any, str]] = {
    "a list with none": ([1.0, None, 2.0], "[1.0, None, 2.0]"),
    "an array with none": (np.array([1.0, None, 2.0]), "array([1.0, "),
    "a mask": (MASKED, "masked_array("),
}


def given(x: Any) -> Any:
    if isinstance(x, BaseException):
        raise x
    return x


class Odd(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata: dict[str, Any] = {}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, reset: str = "", step: str = "", make: bool = True, close: Any = None):
        start, going_on = (GOOD, {}), (GOOD, 1.0, True, False, {})
        self.bad = RESETS.get(reset, start), STEPS.get(step, going_on), close
        if not make:
            raise ValueError("cannot be made")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return given(self.bad[0])

    def step(self, action: Any) -> Any:
        return given(self.bad[1])

    def close(self) -> None:
        given(self.bad[2])


class OddInfo(Odd):
    """Its info has values that no array of all rows can have."""

    made = 0

    def __init__(self):
        super().__init__()
        OddInfo.made += 1
        self.info = {"x": None if OddInfo.made % 2 else 1, "large": 2**70}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], dict(self.info)

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], dict(self.info)


class OddRow(Odd):
    """The third step of the second row gives what it is made with."""

    made = 0

    def __init__(self, **gives: Any):
        super().__init__()
        self.gives, self.steps = gives, 0
        self.row = OddRow.made = OddRow.made + 1

    def step(self, action: Any) -> Any:
        self.steps += 1
        given = self.gives if self.row == OddRow.made and self.steps == 3 else {}
        o = given.get("observation", GOOD)
        return o, given.get("reward", 1), False, given.get("truncated", np.False_), {}


@pytest.fixture
def odd() -> Iterator[str]:
    names = [f"odd/{w}-{k}" for w, ks in (("reset", RESETS), ("step", STEPS)) for k in ks]
    for name in names:
        word, kind = name[4:].split("-")
        gym.register(f"{name}-v0", Odd, kwargs={word: kind})
    gym.register("odd/make-v0", Odd, kwargs={"make": False})
    gym.register("odd/fine-v0", Odd)
    gym.register("odd/close-v0", Odd, kwargs={"close": RuntimeError("no end")})
    gym.register("odd/row-v0", OddRow)
    gym.register("odd/info-v0", OddInfo)
    yield "odd"
    for name in (*names, "odd/make", "odd/fine", "odd/close", "odd/row", "odd/info"):
        del gym.registry[f"{name}-v0"]


def train(algo: str, out: Path, *more: str) -> int:
    few = ["--rows", "2", "--steps", "4", "--iterations", "2", "--hidden", "4"]
    few += ["--epochs", "1", "--minibatches", "1"] if algo == "ppo" else []
    return cli.main(["train", algo, *few, "--backend", "numpy", "--out", str(out), *more])


FAILING = ("make", "close", *(f"reset-{k}" for k in RESETS), *(f"step-{k}" for k in STEPS))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("algo", "name"),
    [("ppo", name) for name in ("make", "close", "reset-shape", "step-raises")]
    + [("reinforce", name) for name in FAILING],
)
def test_what_fails_is_told(
    odd: str, algo: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert train(algo, tmp_path, "--env", f"{odd}/{name}-v0") == 2
    said = capsys.readouterr().err
    assert f"{odd}/{name}-v0" in said
    assert f" fails in {name.split('-')[0]}\n  --> " in said
    if name.endswith("shape"):
        shape = {"reset": (4,), "step": (3, 1)}[name.split("-")[0]]
        assert f"it gives an observation of shape {shape}, and its observation_space is Box" in said
        assert "(3,), float32)\n  called at i=0" in said
        assert f"\n  hint: write the shape that it has: {BOX}, {shape})" in said
    elif name not in ("step-text", "step-rewards", "step-objects"):  # no numbers: told row by row
        assert "check_env(env) says what an environment must give" in said
    if name.endswith(("raises", "make", "close", "exits", "shape")):
        assert "test_odd_envs.py:" in said
    assert "Traceback" not in said


GIVEN = {"reward": NUMBERS, "truncated": TRUTHS, "observation": OBSERVATIONS}
CASES = [(word, *x) for word, some in GIVEN.items() for x in some.values()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("episodes", ["absorbing", "autoreset"])
def test_what_is_no_number_is_told_with_row_and_step(odd: str, episodes: str):
    """NumPy would take None for NaN, and any text for true."""
    for word, x, shown in CASES:
        ctx = rc.Context(dims="b i t")
        with ctx as ((b, B), (i, I), (t, T)):
            options = {"vectorization_mode": "sync", word: x}
            env = rc.rl.env.make(f"{odd}/row-v0", episodes=episodes, **options)
            o = rc.like(env.observation_space, domain=(b, i, t))
            o[b, i, 0] = env.reset(domain=(b, i))
            o[b, i, t + 1], r, _ = env.step((o.sum() > 0.0).cast("i32"))
            rc.log(score=r[0:B, i, 0:T].mean())
        with pytest.raises(rc.RecurraError) as e:
            ctx.run({B: 2, I: 2, T: 5}, backend="numpy")
        *_, first, place, facts, at, _ = str(e.value).splitlines()
        assert first.endswith(" fails in step")
        assert "test_odd_envs.py:" in place
        assert facts.startswith(f"  {word} of row 1 is {shown}")
        assert at == "  called at i=0, t=2"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("episodes", ["absorbing", "autoreset"])
def test_what_info_has_is_of_no_matter(odd: str, episodes: str):
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make(f"{odd}/info-v0", episodes=episodes)
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        o[b, i, t + 1], r, _ = env.step((o.sum() > 0.0).cast("i32"))
        rc.log(score=r[0:B, i, 0:T].sum())
    score = ctx.run({B: 2, I: 2, T: 5}, backend="numpy")["score"]
    assert score.tolist() == [{"absorbing": 2.0, "autoreset": 10.0}[episodes]] * 2


@pytest.mark.parametrize("word", ["bogus", 3, "vector_entry_point"])
def test_rows_that_gymnasium_does_not_know_are_told(odd: str, word: Any):
    with rc.Context(dims="b i t"), pytest.raises(rc.RecurraError) as e:
        rc.rl.env.make(f"{odd}/fine-v0", vectorization_mode=word)
    first, place, _, hint = str(e.value).splitlines()
    assert first == f"Gymnasium cannot make odd/fine-v0(vectorization_mode={word!r})"
    assert "test_odd_envs.py:" in place
    assert hint == "  hint: vectorization_mode='sync'"


ELSEWHERE = """
import logging, sys
import gymnasium as gym
import numpy as np
from recurra.errors import RecurraError
from recurra.rl.episodes import make_episodes
from recurra.rl.vector_env import Spec
gym.logger.min_level = 50
class Corridor(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self, word="", x=0):
        self.given = {word: x}
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.given.get("reset", np.zeros(3, np.float32)), {}
    def step(self, action):
        seen = self.given.get("step", np.zeros(3, np.float32))
        return seen, self.given.get("reward", 1.0), False, False, {}
gym.register("odd/corridor-v0", Corridor)
mask = np.ma.masked_array(np.zeros(3, np.float32), mask=[False, True, False])
if __name__ == "__main__":
    none = [0, None, 0]
    for word, x in (("reward", None), ("step", none), ("reset", none), ("step", mask)):
        spec = Spec("odd/corridor-v0", {"vectorization_mode": "async", "word": word, "x": x})
        env = make_episodes(spec)
        try:
            env.reset(np.zeros(2), 1, 0)
            print(env.step(np.zeros(1, np.int32), 1))
        except RecurraError as error:
            print(error)
"""


@pytest.mark.slow
def test_rows_in_processes_of_their_own_give_numbers_too(tmp_path: Path):
    script = tmp_path / "corridor.py"
    script.write_text(ELSEWHERE)
    command = [sys.executable, "-W", "ignore", str(script)]
    said = subprocess.run(
        command, env=env(), capture_output=True, text=True, timeout=60, check=False
    ).stdout
    assert "  reward is None, and no number of 64 bits" in said
    assert said.count("  observation is [0, None, 0], and has no number") == 2
    assert "and is masked in part" in said
    assert said.count("fails in step\n  --> corridor.py:") == 3
    assert said.count("fails in reset\n  --> corridor.py:") == 1


@pytest.mark.filterwarnings("ignore")
def test_what_is_a_number(odd: str):
    for x in (2, True, np.bool_(True), np.float16(1.5), Fraction(3, 2), np.array(1.5), np.int64(3)):
        spec = Spec(f"{odd}/row-v0", {"reward": x, "vectorization_mode": "sync"})
        env = make_episodes(spec)
        env.reset(np.zeros(2), 1, 0)
        rewards = [float(env.step(np.zeros(1, np.int32), t)[1][0]) for t in (1, 2, 3)]
        assert rewards == [1.0, 1.0, float(x)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_an_environment_prints_is_not_in_the_json(
    odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Odd, "close", lambda _: print("closed"))
    assert train("reinforce", tmp_path, "--env", f"{odd}/fine-v0", "--json") == 0
    out, err = capsys.readouterr()
    assert "run" in json.loads(out)
    assert "closed" in err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_environment_that_ends_at_once_is_fine(odd: str, tmp_path: Path):
    assert train("ppo", tmp_path, "--env", f"{odd}/fine-v0") == 0
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_episode_steps": "a"}, "max_episode_steps is 'a'\n"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0\n"),
        ({"max_episode_steps": 1.5}, "max_episode_steps is 1.5\n"),
        ({"max_episode_steps": True}, "max_episode_steps is True\n"),
        ({"vector_kwargs": 3}, "vector_kwargs is 3\n"),
        ({"vector_kwargs": {"autoreset_mode": "never"}}, "autoreset_mode is 'never'\n"),
        ({"speed": 3}, "Gymnasium cannot make CartPole-v1(speed=3)\n"),
    ],
)
def test_options_that_gymnasium_does_not_take(options: dict[str, Any], said: str) -> None:
    """They are told where they are written, and not by what they are no options of."""
    with rc.Context(dims="b i t"), pytest.raises(rc.RecurraError) as e:
        rc.rl.env.make("CartPole-v1", **options)
    assert str(e.value).startswith(said)
    assert f"{Path(__file__).name}:" in str(e.value)
    assert "pprint_registry" not in str(e.value)
    steps = rc.rl.env.make("CartPole-v1", max_episode_steps=np.int64(7))
    assert steps.observation_space is not None
