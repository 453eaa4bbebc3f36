"""Environments in JAX, by the protocols of gymnax and brax: as loops over single ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_host_env import Arrays, evaluate

import recurra as rc
from recurra.errors import RecurraError, ShapeError
from recurra.ops.control import Call

BOUNDS = {"B": 2, "I": 2, "T": 7}


class State(NamedTuple):
    at: Any
    pace: Any  # not shown
    time: Any


class Params(NamedTuple):
    edge: float = 1.5
    max_steps_in_episode: int = 5


class Walk:
    """As an environment of gymnax 1: a time limit beside the edges; shows a dict."""

    name = "Walk"
    default_params = Params()

    def reset_env(self, key: Any, params: Params) -> Any:
        at, pace = jax.random.uniform(key, (2,), minval=0.1, maxval=0.4)
        state = State(at, pace, 0)
        return self.seen(state), state

    def step_env(self, key: Any, state: State, action: Any, params: Params) -> Any:
        noise = jax.random.uniform(key) * 0.01
        at = state.at + (action - 1) * (state.pace + 0.3) + noise
        state = State(at, state.pace, state.time + 1)
        return self.seen(state), state, 1.0 + at, self.ended(state, params), {}

    def ended(self, state: State, params: Params) -> Any:
        return jnp.abs(state.at) > params.edge

    def is_truncated(self, state: State, params: Params) -> Any:
        return state.time >= params.max_steps_in_episode

    def step(self, key: Any, state: State, action: Any, params: Params) -> Any:
        o, state, reward, term, info = self.step_env(key, state, action, params)
        return o, state, reward, term, self.is_truncated(state, params), info

    def seen(self, state: State) -> Any:
        return {"at": jnp.stack([state.at]), "time": state.time}

    def action_space(self, params: Params) -> Any:
        return SimpleNamespace(n=3, shape=(), sample=lambda key: jax.random.randint(key, (), 0, 3))


class OldWalk(Walk):
    """As an environment of gymnax 0.0: five results, and the time limit is a terminal state."""

    is_truncated: Any = None

    def ended(self, state: State, params: Params) -> Any:
        late = state.time >= params.max_steps_in_episode
        return (jnp.abs(state.at) > params.edge) | late

    def step(self, key: Any, state: State, action: Any, params: Params) -> Any:
        return self.step_env(key, state, action, params)


FIELDS = ("at", "time", "next_at", "final_at", "r", "term", "trunc", "d", "live")


def program(env: Any, params: Any, kind: str) -> rc.Context:
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.from_gymnax(env, params, episodes=kind)
        assert env.actions == 3
        o = rc.like(env.observation_space, domain=(b, i, t), name="o")
        o[b, i, 0] = env.reset(domain=(b, i))
        a = (rc.uniform((b, i, t)) * 3.0).floor().cast("i32")
        o[b, i, t + 1], r, d = env.step(a)
        x = env.last
        assert x is not None
        rc.output(at=o["at"], time=o["time"], next_at=x.next_o["at"], final_at=x.final_o["at"])
        rc.output(a=a, r=r, d=d, term=x.term, trunc=x.trunc, live=x.live)
    return ctx


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys are one, so that a loop can follow what is drawn."""
    from recurra.rl import adapters

    monkeypatch.setattr(adapters, "key", lambda u: (u * 0).astype("uint32"))


def by_hand(env: Walk, kind: str, got: Arrays) -> Arrays:
    key = jnp.zeros(2, "uint32")
    out = {k: np.zeros_like(got[k]) for k in FIELDS}
    tells, params = not isinstance(env, OldWalk), Params()
    for b in range(BOUNDS["B"]):
        o, state, term, trunc, live = None, None, False, False, True
        for i, t in np.ndindex(BOUNDS["I"], BOUNDS["T"]):
            if t == 0 and (kind == "absorbing" or i == 0):
                (o, state), term, trunc = env.reset_env(key, params), False, False
            live, reward, before = not (term or trunc), 0.0, o
            if live:
                o, state, reward, term, _ = env.step_env(key, state, got["a"][b, i, t], params)
                trunc = bool(tells and env.is_truncated(state, params))
                term = bool(term)
            final, flags = o, (term, trunc, term or trunc, live)
            if kind == "autoreset" and (term or trunc):
                (o, state), term, trunc = env.reset_env(key, params), False, False
            row = (before["at"], before["time"], o["at"], final["at"], reward, *flags)  # type: ignore[index]
            for name, x in zip(FIELDS, row, strict=True):
                out[name][b, i, t] = x
    return out


@pytest.mark.slow
@pytest.mark.parametrize("dims", ["b i t", "i b t", "t i b"])
def test_episodes_go_on_along_the_last_dim_that_is_written(dims: str) -> None:
    """reset(domain=(b, i)): along i, whatever order the context has."""
    ctx = rc.Context(dims=dims)
    with ctx as pairs:
        (b, B), (i, I), (t, T) = sorted(pairs, key=lambda pair: str(pair[0]))
        env = rc.rl.env.from_gymnax(Walk(), Params(), episodes="autoreset")
        o = rc.like(env.observation_space, domain=tuple(d for d, _ in pairs), name="o")
        begin = env.reset(domain=(b, i))
        first, after = o["at"], rc.value(t + 1)
        for name in ("at", "time"):
            x = o[name]
            x[t == 0] = begin[name]
        choice = (first.sum() * 0.0 + after).cast("i32") % 3
        moved, _, _ = env.step(choice)
        for name in ("at", "time"):
            x = o[name]
            x[tuple(d + 1 if str(d) == "t" else d for d, _ in pairs)] = moved[name]
        rc.output(begin=first, moved=moved["at"])
    out = ctx.run({B: 2, I: 3, T: 4}, backend="numpy")
    turned = [dims.split().index(d) for d in "bit"]
    begin, moved = (np.moveaxis(out[k], turned, (0, 1, 2)) for k in ("begin", "moved"))
    np.testing.assert_array_equal(begin[:, 1:, 0], moved[:, :-1, -1])
    assert len(np.unique(begin[:, 0, 0])) == 2, "every row begins its own episode"


@pytest.mark.slow
@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("kind", ["absorbing", "autoreset"])
@pytest.mark.parametrize("make", [Walk, OldWalk])
def test_both_signatures(make: type[Walk], kind: str):
    ctx = program(make(), None, kind)
    got = evaluate(ctx, BOUNDS)
    want = by_hand(make(), kind, got)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert want["d"].any()
    assert want["trunc"].any() == (make is Walk)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["absorbing", "autoreset"])
def test_compiled_as_by_the_oracle(kind: str):
    ctx = program(Walk(), Params(edge=0.8), kind)
    want, got = evaluate(ctx, BOUNDS, seed=3), ctx.run(BOUNDS, seed=3)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert len(np.unique(got["at"][:, :, 0])) == 4  # rows and iterations draw keys of their own
    assert not any(isinstance(n.op, Call) for n in ctx.graph.nodes.values())


class Rolling(NamedTuple):
    """A state as brax has it: what is inside, and what everyone reads."""

    inside: Any
    obs: Any
    reward: Any
    done: Any
    info: dict[str, Any]


class Cart:
    """As an environment of brax: pushed by a number, done beyond 1."""

    action_size = 1

    def reset(self, key: Any) -> Rolling:
        at = jax.random.uniform(key, (2,), minval=-0.5, maxval=0.5)
        return Rolling({"rng": key, "at": at}, at, jnp.zeros(()), jnp.zeros(()), {})

    def step(self, state: Rolling, action: Any) -> Rolling:
        at = state.inside["at"] + jnp.array([1.0, 0.5]) * action[0]
        done = (jnp.abs(at[0]) > 1).astype(jnp.float32)
        return Rolling(state.inside | {"at": at}, at, -(at[0] ** 2), done, state.info)

    @property
    def unwrapped(self) -> Any:
        return self


class Limited(Cart):
    """As brax's EpisodeWrapper: done after three steps, and says so."""

    def __init__(self, env: Cart):
        self.env = env

    def reset(self, key: Any) -> Rolling:
        info = {"steps": jnp.zeros(()), "truncation": jnp.zeros(())}
        return self.env.reset(key)._replace(info=info)

    def step(self, state: Rolling, action: Any) -> Rolling:
        after = self.env.step(state, action)
        steps = state.info["steps"] + 1
        late = jnp.where(steps >= 3, 1 - after.done, 0.0)
        info = {"steps": steps, "truncation": late}
        return after._replace(info=info, done=jnp.maximum(after.done, late))


class AutoResetWrapper(Limited):
    pass


@pytest.mark.parametrize("kind", ["absorbing", "autoreset"])
def test_brax(kind: str):
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.from_brax(Limited(Cart()), episodes=kind)
        o = rc.like(env.observation_space, domain=(b, i, t), name="o")
        o[b, i, 0] = env.reset(domain=(b, i))
        a = rc.uniform((b, i, t), (1,)) - 0.5
        o[b, i, t + 1], r, d = env.step(a)
        x = env.last
        assert x is not None
        rc.output(o=o, a=a, r=r, d=d, term=x.term, trunc=x.trunc, live=x.live, final=x.final_o)
    got = evaluate(ctx, BOUNDS)
    for b in range(BOUNDS["B"]):
        at, steps, over = np.zeros(2), 0, False
        for i, t in np.ndindex(BOUNDS["I"], BOUNDS["T"]):
            p = (b, i, t)
            if (over and kind == "autoreset") or (t == 0 and (kind == "absorbing" or i == 0)):
                at, steps, over, term, late = got["o"][p], 0, False, False, False
            np.testing.assert_allclose(got["o"][p], at, rtol=1e-5)
            assert got["live"][p] == (not over)
            if not over:
                at, steps = at + np.array([1.0, 0.5]) * got["a"][p], steps + 1
                term = abs(at[0]) > 1
                late = steps == 3 and not term
                assert got["r"][p] == pytest.approx(-(at[0] ** 2), rel=1e-4)
            over = term or late
            assert (got["term"][p], got["trunc"][p], got["d"][p]) == (term, late, over)
            np.testing.assert_allclose(got["final"][p], at, rtol=1e-5)
    assert got["trunc"].any()


def test_what_is_refused():
    with rc.Context(num_dims=3) as ((b, B), (i, I), (t, T)):
        with pytest.raises(RecurraError, match=r"wrapped in AutoResetWrapper\n(.*\n)+.*auto_reset"):
            rc.rl.env.from_brax(Limited(AutoResetWrapper(Cart())))
        with pytest.raises(
            RecurraError, match=r"Cart is no environment of gymnax\n.*\n.*reset_env"
        ):
            rc.rl.env.from_gymnax(Cart())
        with pytest.raises(RecurraError, match="episodes='endless' is not known"):
            rc.rl.env.from_gymnax(Walk(), episodes="endless")
        env = rc.rl.env.from_gymnax(Walk())
        with pytest.raises(RecurraError, match="Walk is stepped before its reset"):
            env.step(rc.value(t, "i32"))
        env.reset(domain=(b, i))
        with pytest.raises(ShapeError, match=r"Walk takes actions i32\[\]\n"):
            env.step(rc.uniform((b, i, t), (2,)))


def test_a_step_of_other_results_is_refused():
    class Odd(Walk):
        def step(self, key: Any, state: State, action: Any, params: Params) -> Any:
            return self.step_env(key, state, action, params)[:4]

    with pytest.raises(RecurraError, match=r"its step gives 4 results, not 5 \(gymnax 0.0\) or 6"):
        rc.rl.env.from_gymnax(Odd())
