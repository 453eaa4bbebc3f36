"""Rows that go on into new episodes, transition for transition as in hand-rolled loops."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from test_host_env import BOUNDS, NATIVE, SYNC, Arrays, evaluate

import recurra as rc
from recurra.errors import RecurraError
from recurra.rl import episodes
from walks import Walk, Walks, registered

FIELDS = ("o", "next_o", "final_o", "r", "term", "trunc", "d", "live")


@pytest.fixture(autouse=True, scope="module")
def walks() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What environments are seeded with, as it happens."""
    found: list[int] = []
    draw = episodes.seed
    monkeypatch.setattr(episodes, "seed", lambda u: found.append(draw(u)) or found[-1])
    return found


def random_walk(id: str, **kwargs: Any) -> rc.Context:
    """Random actions; every field of the transition is an output."""
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make(id, episodes="autoreset", **kwargs)
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        a = (rc.uniform((b, i, t)) * float(env.actions or 0)).floor().cast("i32")
        a = rc.where(o[b, i, t].cut(0, 1).sum() > 0.9, 1, a)
        o[b, i, t + 1], r, d = env.step(a)
        x = env.last
        assert x is not None
        rc.output(o=o, a=a, r=r, d=d, next_o=x.next_o, final_o=x.final_o)
        rc.output(term=x.term, trunc=x.trunc, live=x.live)
    return ctx


def blank(actions: np.ndarray, width: int) -> Arrays:
    wide = ("o", "next_o", "final_o")
    return {k: np.zeros((*actions.shape, *([width] if k in wide else []))) for k in FIELDS}


def same_step(envs: list[Any], seed: int, actions: np.ndarray, start: int, width: int) -> Arrays:
    """A loop over single environments, each reset in the step that ends its episode."""
    out = blank(actions, width)
    for b, env in enumerate(envs):
        o, _ = env.reset(seed=seed + b)
        for i, t in np.ndindex(actions.shape[1:]):
            at = (b, i, t)
            final, reward, term, trunc, _ = env.step(start + int(actions[at]))
            after = env.reset()[0] if term or trunc else final
            row = (o, after, final, reward, term, trunc, term or trunc, True)
            for name, x in zip(FIELDS, row, strict=True):
                out[name][at] = x
            o = after
    return out


def next_step(env: Any, seed: int, actions: np.ndarray, start: int, width: int) -> Arrays:
    """A loop over a vector environment; a row that ended takes no part in the step after."""
    out = blank(actions, width)
    o = np.array(env.reset(seed=seed)[0])
    ended = np.zeros(len(o), bool)
    for i, t in np.ndindex(actions.shape[1:]):
        act = (start + actions[:, i, t]).astype(env.action_space.dtype)
        after, reward, term, trunc, _ = env.step(act)
        row = (o, after, after, reward, term, trunc, term | trunc, ~ended)
        for name, x in zip(FIELDS, row, strict=True):
            out[name][:, i, t] = x
        o, ended = np.array(after), term | trunc
    return out


def compare(got: Arrays, want: Arrays) -> None:
    for name in FIELDS:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6, err_msg=name)


EXACT = [x for x in SYNC + NATIVE if x[0] != "Walks-NEXT_STEP-v0"]


@pytest.mark.parametrize(("id", "kwargs"), EXACT)
def test_rows_go_on(id: str, kwargs: dict[str, Any], seeds: list[int]):
    got = evaluate(random_walk(id, **kwargs), BOUNDS)
    (seed,) = seeds
    want = same_step([Walk() for _ in range(BOUNDS["B"])], seed, got["a"], -1, 2)
    compare(got, want)
    assert want["term"].any()
    assert want["trunc"].any()
    assert (got["o"][:, 1:, 0] == got["next_o"][:, :-1, -1]).all()
    assert (got["next_o"][got["d"]] != got["final_o"][got["d"]]).any()


@pytest.mark.parametrize("mode", [m.value for m in AutoresetMode])
def test_cartpole_goes_on_in_every_mode(mode: str, seeds: list[int]):
    kwargs = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": mode}}
    got = evaluate(random_walk("CartPole-v1", max_episode_steps=11, **kwargs), BOUNDS)
    envs = [gymnasium.make("CartPole-v1", max_episode_steps=11) for _ in range(BOUNDS["B"])]
    compare(got, same_step(envs, seeds[0], got["a"], 0, 4))
    assert got["term"].any()
    assert got["trunc"].any()


def test_steps_that_are_only_resets_are_not_live(seeds: list[int]):
    got = evaluate(random_walk("Walks-NEXT_STEP-v0"), BOUNDS)
    compare(got, next_step(Walks(BOUNDS["B"], AutoresetMode.NEXT_STEP), seeds[0], got["a"], -1, 2))
    # Walks draws as single walks do: what is live is what they show.
    walks = same_step([Walk() for _ in range(BOUNDS["B"])], seeds[0], got["a"], -1, 2)
    first = int(np.argmax(~got["live"].reshape(BOUNDS["B"], -1)[0]))
    np.testing.assert_allclose(
        got["o"].reshape(BOUNDS["B"], -1, 2)[0, :first],
        walks["o"].reshape(BOUNDS["B"], -1, 2)[0, :first],
    )
    fake = ~got["live"]
    assert fake.any()
    assert not got["r"][fake].any()
    assert not got["d"][fake].any()


def test_native_cartpole_goes_on(seeds: list[int]):
    ctx = random_walk("CartPole-v1", max_episode_steps=11)
    got = evaluate(ctx, BOUNDS)
    env = gymnasium.make_vec("CartPole-v1", num_envs=BOUNDS["B"], max_episode_steps=11)
    compare(got, next_step(env, seeds[0], got["a"], 0, 4))
    assert not got["live"].all()
    assert (got["live"].reshape(BOUNDS["B"], -1).sum(1) > 20).all()


@pytest.mark.slow
@pytest.mark.parametrize("id", ["Walk-v0", "Walks-NEXT_STEP-v0"])
def test_compiled_as_by_the_oracle(id: str):
    ctx = random_walk(id)
    want = evaluate(ctx, BOUNDS, seed=5)
    compiled = ctx.compile(BOUNDS)
    for _ in range(2):  # a run starts anew, whatever the one before has left
        got = compiled.run(seed=5)
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)


def test_last_observations_may_come_as_one_array(monkeypatch: pytest.MonkeyPatch):
    want = evaluate(random_walk("Walks-SAME_STEP-v0"), BOUNDS)
    step = Walks.step

    def plain(self: Walks, actions: np.ndarray) -> Any:
        *rest, info = step(self, actions)
        rows = [np.zeros(2) if x is None else x for x in info.get("final_obs", ())]
        return *rest, {"final_obs": np.array(rows)} if rows else {}

    monkeypatch.setattr(Walks, "step", plain)
    compare(evaluate(random_walk("Walks-SAME_STEP-v0"), BOUNDS), want)


def test_rows_start_anew_along_outer_dims(seeds: list[int]):
    ctx = rc.Context(dims="e i t")
    with ctx as ((e, E), (i, I), (t, T)):
        env = rc.rl.env.make("Walk-v0", episodes="autoreset")
        o = rc.like(env.observation_space, domain=(e, i, t))
        o[e, i, 0] = env.reset(domain=(e, i), rows=())
        o[e, i, t + 1], r, _ = env.step(rc.value(t % 2, "i32") * 2)
        rc.output(o=o, r=r)
    got = evaluate(ctx, {"E": 2, "I": 3, "T": 4})["o"]
    assert len(seeds) == 2
    assert (got[0, 0] != got[1, 0]).any()
    assert got[0, 1, 0, 1] == 4.0  # four steps old


def test_a_pool_is_made_anew_for_every_seed(monkeypatch: pytest.MonkeyPatch, seeds: list[int]):
    """EnvPool ignores the seed of a reset; the last observation of an episode is shown."""
    made: list[Any] = []

    class Pool(Walks):
        def __init__(self, num_envs: int, seed: int):
            super().__init__(num_envs, AutoresetMode.NEXT_STEP)
            self.seed = seed

        def reset(self, **_: Any) -> Any:
            return super().reset(seed=self.seed)

    def make(id: str, env_type: str, num_envs: int, seed: int = 42, **options: Any) -> Any:
        assert (id, env_type, options) == ("Walk-v9", "gymnasium", {"num_threads": 1})
        made.append(Pool(num_envs, seed))
        return made[-1]

    monkeypatch.setitem(sys.modules, "envpool", SimpleNamespace(make=make))
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.from_envpool("Walk-v9", num_threads=1)
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        a = (rc.uniform((b, i, t)) * 3.0).floor().cast("i32")
        o[b, i, t + 1], r, d = env.step(a)
        rc.output(o=o, a=a, r=r, d=d)
    got = evaluate(ctx, BOUNDS)
    assert [p.seed for p in made if p.seed != 42] == [s % 2**31 for s in seeds]
    for b, i in np.ndindex(BOUNDS["B"], BOUNDS["I"]):
        walk, over = Walk(), False
        o, _ = walk.reset(seed=seeds[i] % 2**31 + b)
        for t in range(BOUNDS["T"]):
            np.testing.assert_allclose(got["o"][b, i, t], o, rtol=1e-6)
            if not over:
                o, _, term, trunc, _ = walk.step(int(got["a"][b, i, t]) - 1)
                over = term or trunc
            assert got["d"][b, i, t] == over


def test_without_envpool(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(RecurraError, match=r"EnvPool cannot make Pong-v5\(\)\n  --> test_"):
        rc.rl.env.from_envpool("Pong-v5")


def test_a_loss_that_counts_resets_is_refused():
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("CartPole-v1", episodes="autoreset")
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        o[b, i, t + 1], r, _ = env.step(rc.value(t % 2, "i32"))
        rc.output(r=r)
    with pytest.raises(RecurraError) as error:
        ctx.compile(BOUNDS)
    text = str(error.value)
    assert text.startswith("CartPole-v1(episodes='autoreset') has steps that are only resets")
    assert "  --> test_autoreset.py" in text
    assert "env.last.live is false there, and nothing reads it" in text
