"""Frame stacking: what Gymnasium's wrapper shows, and every observation is stored once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FrameStackObservation
from test_host_env import evaluate

import recurra as rc
from recurra.rl import episodes

BOUNDS = {"B": 3, "I": 2, "T": 12}


class Screen(gym.Env):
    """Pictures of noise; an episode has five steps."""

    observation_space = spaces.Box(0, 255, (2, 8, 8), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return self.np_random.integers(0, 255, (2, 8, 8), dtype=np.uint8)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return self.seen(), float(action), self.steps == 5, False, {}


@pytest.fixture(autouse=True, scope="module")
def screen() -> Iterator[None]:
    gym.register("Screen-v0", Screen)
    yield
    del gym.registry["Screen-v0"]


def program(kind: str, learn: bool) -> rc.Context:
    """Acts by the last four frames; learns from whole episodes."""
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        mode = {"autoreset_mode": AutoresetMode.SAME_STEP}
        env = rc.rl.env.make("Screen-v0", episodes=kind, vector_kwargs=mode)
        o = rc.like(env.observation_space, domain=(b, i, t), name="o")
        o[b, i, 0] = env.reset(domain=(b, i))
        starts = None
        if kind == "autoreset":
            starts = rc.like(rc.boolean[()], domain=(b, i, t), name="starts")
            starts[b, i, 0] = True
        x = rc.rl.frames(o, 4, starts)
        w = rc.nn.Parameter(rc.normal((), (512, 3)) * 0.01, domain=(i,), name="w")
        y = (x.reshape(-1).cast("f32") / 255.0) @ w
        o[b, i, t + 1], r, d = env.step(y.argmax())
        if starts is not None:
            starts[b, i, t + 1] = d
        if learn:
            g = r[b, i, t:T].discounted_sum(0.9)
            loss = (g * y.max())[0:B, i, 0:T].mean()
            loss.backward()
            rc.optim.SGD([w], lr=0.01).step()
            rc.log(loss=loss)
        else:
            rc.log(total=r[0:B, i, 0:T].sum(axis=1).mean())
        if kind == "autoreset":
            rc.output(x=x)
    return ctx


def test_as_gymnasium_stacks_them(monkeypatch: pytest.MonkeyPatch):
    seeds: list[int] = []
    draw = episodes.seed
    monkeypatch.setattr(episodes, "seed", lambda u: seeds.append(draw(u)) or seeds[-1])
    got = evaluate(program("autoreset", learn=False), BOUNDS | {"I": 1})["x"]
    assert got.shape == (3, 1, 12, 4, 2, 8, 8)
    assert got.dtype == np.uint8
    for b in range(BOUNDS["B"]):
        env = FrameStackObservation(Screen(), 4)
        o, _ = env.reset(seed=seeds[0] + b)
        for t in range(BOUNDS["T"]):
            np.testing.assert_array_equal(got[b, 0, t], o)
            o, _, term, trunc, _ = env.step(0)
            if term or trunc:
                o, _ = env.reset()


@pytest.mark.slow
@pytest.mark.parametrize(("learn", "slots"), [(False, 4), (True, BOUNDS["T"])])
def test_an_observation_is_stored_once(learn: bool, slots: int):
    """Acting needs the four slots of the window; learning all steps, but never stacks of them."""
    ctx = program("absorbing", learn)
    compiled = ctx.compile(BOUNDS)
    frame = BOUNDS["B"] * 2 * 8 * 8
    stores = compiled.compiled.plan.stores.values()
    pictures = {s.name: s.nbytes(compiled.sizes) for s in stores if "u8" in s.type.dtype}
    assert pictures == {"o": slots * frame}
    others = sum(s.nbytes(compiled.sizes) for s in stores if s.name != "o")
    assert others < 3 * frame
    (name,) = ctx.builder.logs
    np.testing.assert_allclose(compiled.run()[name], evaluate(ctx, BOUNDS)[name], rtol=1e-5)


@pytest.mark.parametrize("with_starts", [False, True])
def test_sampled_frames_are_stored_once(with_starts: bool):
    """They are stacked of samples: as those of all stacks, which take four times as much."""
    found: list[tuple[Any, int]] = []
    for stacked_first in (True, False):
        ctx = rc.Context(dims="b i n t")
        with ctx as ((b, B), (i, I), (n, N), (t, T)):
            noise = rc.uniform((b, i, t), (2, 8, 8))
            o = rc.like(noise.type, domain=(b, i, t), name="o")
            o[b, i, 0] = noise[b, i, 0]
            o[b, i, t + 1] = 0.5 * o + noise[b, i, t + 1]
            starts = None
            if with_starts:
                starts = rc.like(rc.boolean, domain=(b, i, t), name="starts")
                starts[b, i, t] = rc.uniform((b, i, t)) < 0.3
            x = rc.rl.frames(o, 4, starts)
            if stacked_first:
                x = x * 1.0  # a computation: it is done before
            k = rc.permutation(B * T, at=n, domain=(i,))
            rc.output(y=rc.rl.rows(x.detach(), k, over=(b, t)))
        program = ctx.compile({B: 3, I: 2, T: 9, N: 27}, backend="numpy")
        kept = [r for r in program.store_rows if r["store"] != "y" and r["class"] != "output"]
        found.append((program.run(seed=4)["y"], sum(r["bytes"] for r in kept)))
    (want, much), (got, little) = found
    np.testing.assert_array_equal(got, want)
    assert little < much / 2
