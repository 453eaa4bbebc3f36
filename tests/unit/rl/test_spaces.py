"""Spaces of every kind, seen and taken: as a loop over single environments has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from test_host_env import evaluate

import recurra as rc
from recurra.errors import RecurraError, ShapeError
from recurra.rl import episodes

BOUNDS = {"B": 3, "I": 2, "T": 5}
SEEN = spaces.Dict(
    image=spaces.Box(0, 255, (2, 3, 3), np.uint8),
    at=spaces.Box(-9, 9, (2,), np.float64),
    gear=spaces.Discrete(4, start=2),
    both=spaces.Tuple((spaces.MultiDiscrete([3, 4], start=[1, -1]), spaces.MultiBinary(3))),
    count=spaces.Box(-1000, 1000, (), np.int16),
)
TAKEN = spaces.Dict(
    move=spaces.Discrete(3, start=-1),
    force=spaces.Box(-1, 1, (2,), np.float32),
    pair=spaces.Tuple((spaces.MultiDiscrete([4, 4], start=[1, 0]), spaces.MultiBinary(2))),
)


class Zoo(gym.Env):
    """Shows what was done to it; ends after three or four steps."""

    observation_space, action_space = SEEN, TAKEN

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.uniform(-1, 1, 2), 0
        self.last = int(self.np_random.integers(3, 5))
        return self.seen(0, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert TAKEN.contains(action), action
        gears, flags = action["pair"]
        self.at = self.at + action["force"] * action["move"]
        self.steps += 1
        reward = float(gears @ [1, 10] + flags @ [100, 1000])
        ended = self.steps == self.last
        return self.seen(int(gears[0]), int(flags[1])), reward, ended, False, {}

    def seen(self, a: int, b: int) -> Any:
        return {
            "image": np.arange(18, dtype=np.uint8).reshape(2, 3, 3) * 14 + self.steps,
            "at": self.at,
            "gear": 2 + (self.steps + a) % 4,
            "both": (np.array([1 + a % 3, -1 + a % 4]), np.array([b, 1, 0], np.int8)),
            "count": np.array(-300 * self.steps, np.int16),
        }


@pytest.fixture(autouse=True, scope="module")
def zoo() -> Iterator[None]:
    gym.register("Zoo-v0", Zoo)
    yield
    del gym.registry["Zoo-v0"]


def program(kind: str, mode: AutoresetMode) -> rc.Context:
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        kwargs: dict[str, Any] = {"vector_kwargs": {"autoreset_mode": mode.value}}
        env = rc.rl.env.make("Zoo-v0", episodes=kind, **kwargs)
        o = rc.like(env.observation_space, domain=(b, i, t), name="o")
        o[b, i, 0] = env.reset(domain=(b, i))
        u = rc.uniform((b, i, t), (2,))
        whole = (u * 4.0).floor().cast("i32")
        action = {
            "move": whole.index(0) % 3,
            "force": u * 2.0 - o["at"],
            "pair": (whole, o["both"][b, i, t].parts[1].cut(0, 2) != (u > 0.5)),
        }
        o[b, i, t + 1], r, d = env.step(action)
        bright = o["image"].cast("f32").mean() / 255.0
        gears, flags = o["both"]
        rc.output(image=o["image"], at=o["at"], gear=o["gear"], count=o["count"], bright=bright)
        rc.output(gears=gears, flags=flags, force=action["force"], moves=whole, r=r, d=d)
        rc.output(pressed=action["pair"][1], last=env.last.final_o["count"])  # type: ignore[union-attr]
    return ctx


def by_hand(kind: str, seeds: list[int], got: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = ("image", "at", "gear", "count", "gears", "flags", "r", "d", "last")
    out = {k: np.zeros_like(got[k]) for k in names}
    for b in range(BOUNDS["B"]):
        env, ended, steps = Zoo(), False, -1
        for i, t in np.ndindex(BOUNDS["I"], BOUNDS["T"]):
            at = (b, i, t)
            if t == 0 and (kind == "absorbing" or i == 0):
                (o, _), ended = env.reset(seed=seeds[i] + b), False
            shown = {k: o[k] for k in ("image", "at", "count")}
            gears = np.asarray(o["both"][0]) - [1, -1]
            shown |= {"gear": np.eye(4)[o["gear"] - 2], "gears": gears, "flags": o["both"][1]}
            for name, x in shown.items():
                out[name][at] = x
            if not ended:
                whole = got["moves"][at]
                action = {"move": int(whole[0] % 3) - 1, "force": got["force"][at]}
                action["pair"] = (np.add(whole, [1, 0]), got["pressed"][at].astype(np.int8))
                o, out["r"][at], ended, _, _ = env.step(action)
            steps = o["count"]
            out["d"][at], out["last"][at] = ended, steps
            if ended and kind == "autoreset":
                (o, _), ended = env.reset(), False
    return out


@pytest.mark.parametrize("kind", ["absorbing", "autoreset"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_all_of_them(kind: str, mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TAKEN["force"], "contains", lambda x: x.dtype == np.float32)
    seeds: list[int] = []
    draw = episodes.seed
    monkeypatch.setattr(episodes, "seed", lambda u: seeds.append(draw(u)) or seeds[-1])
    got = evaluate(program(kind, mode), BOUNDS)
    for name, value in by_hand(kind, seeds, got).items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)
    dtypes = {k: got[k].dtype.name for k in ("image", "at", "count", "gears", "flags")}
    want = ["uint8", "float32", "int32", "int32", "bool"]
    assert list(dtypes.values()) == want
    assert got["d"].any()


def test_images_stay_bytes_until_they_are_used():
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("Zoo-v0")
        o = rc.like(env.observation_space, domain=(b, i, t), name="o")
        o[b, i, 0] = env.reset(domain=(b, i))
        w = rc.nn.Parameter(rc.constant(np.ones((2, 3, 3))), domain=(i,), name="w")
        bright = (o["image"].cast("f32") / 255.0 * w).mean()
        action = {"move": rc.value(t % 3, "i32"), "force": o["at"]}
        action["pair"] = (rc.value(t % 4, "i32").expand(2), (bright > 0.5).expand(2))
        o[b, i, t + 1], r, _ = env.step(action)
        g = r[b, i, t:T].discounted_sum(0.9)
        loss = (g * bright.square())[0:B, i, 0:T].mean()
        loss.backward()
        rc.optim.SGD([w], lr=0.01).step()
        rc.log(loss=loss)
        rc.output(bright=bright)
    want = evaluate(ctx, BOUNDS)
    program = ctx.compile(BOUNDS)
    got = program.run()
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-5)
    stores = program.compiled.plan.stores.values()
    images = [s for s in stores if s.nbytes(program.sizes) >= np.prod([*BOUNDS.values()]) // 2 * 18]
    assert [(s.type.dtype, s.name.startswith("o_image")) for s in images] == [("u8", True)]
    assert str(ctx.graph["reset"].type).startswith("(u8[B,2,3,3], f32[B,2]")


class Silent(Zoo):
    observation_space = spaces.Dict(text=spaces.Text(3), at=SEEN["at"])


class Wide(Zoo):
    observation_space = spaces.Box(0, 2**63, (1,), np.uint64)


@pytest.mark.parametrize(
    ("entry", "says"),
    [(Silent, "it has Text(1, 3, characters="), (Wide, "it has Box(0, 9223372036854775807")],
)
def test_refused(entry: type[gym.Env], says: str):
    gym.register("Refused-v0", entry)
    try:
        with pytest.raises(RecurraError) as error:
            rc.rl.env.make("Refused-v0")
    finally:
        del gym.registry["Refused-v0"]
    text = str(error.value)
    assert text.startswith("the observation space of Refused-v0() is not supported\n  --> test_")
    assert "Box (of up to 32 bits), Discrete, MultiDiscrete, MultiBinary, and Tuple" in text


def test_misuse_is_told():
    with rc.Context(num_dims=3) as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("Zoo-v0")
        with pytest.raises(RecurraError, match="is no single tensor\n"):
            assert env.observation_space.type
        o = rc.like(env.observation_space, domain=(b, i, t))
        with pytest.raises(ShapeError, match=r"other parts\n.*\n.*the value \['at'\]"):
            o[b, i, 0] = {"at": rc.constant([0.0, 0.0])}
        o[b, i, 0] = env.reset(domain=(b, i))
        with pytest.raises(ShapeError, match=r"has other parts\n.*\n  it has \['move'\]"):
            env.step({"move": rc.value(t, "i32")})
        force = {"move": rc.value(t, "i32"), "force": o["at"].cut(0, 1), "pair": (0, 0)}
        with pytest.raises(ShapeError, match=r"takes actions f32\[2\]\n"):
            env.step(force)
