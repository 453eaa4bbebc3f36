"""What env.step gives is unpacked to three names; another number is told with what to write."""

from __future__ import annotations

from typing import Any

import pytest

import recurra as rc
from recurra.errors import RecurraError


def moved(state: Any, action: Any) -> Any:
    return state + action, state[0] > 1


AUTORESET = {"episodes": "autoreset"}


@pytest.mark.parametrize("names", ["o2, r", "o2, r, term, trunc", "o2, r, d, _, _"])
@pytest.mark.parametrize("kwargs", [{}, AUTORESET], ids=["absorbing", "autoreset"])
def test_another_number_of_names(names: str, kwargs: Any) -> None:
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        env = rc.rl.env.traceable(
            lambda u: u, moved, observation=rc.f32[1], actions=2, draws=1, **kwargs
        )
        o = rc.like(env.observation_space, domain=(i, t))
        o[i, 0] = env.reset(domain=(i,))
        a = rc.randint(0, 2, (i, t))
        found = env.step(a)
        with pytest.raises(RecurraError) as refused:
            exec(f"{names} = found", {"found": found})
        assert f"{names.count(',') + 1} names are there" in refused.value.what
        assert "o[b, i, t + 1], r, d = env.step(a)" in refused.value.hint
        first, *rest = found
        assert len(list(found)) == len(rest) + 1 == 3
        o[i, t + 1], r, _ = found
        assert first is found[0]
        assert r is env.last.reward
        rc.output(r=r, term=env.last.term, trunc=env.last.trunc)
    assert ctx.run({I: 2, T: 3}, backend="numpy")["r"].shape == (2, 3)


def test_names_for_what_a_reset_does_not_give() -> None:
    with rc.Context(dims="i t") as ((i, _), (t, _)):
        env = rc.rl.env.traceable(lambda u: u, moved, observation=rc.f32[1], actions=2)
        with pytest.raises(RecurraError, match="one tensor is unpacked to 2 names") as refused:
            _o, _info = env.reset(domain=(i,))
        assert "o[b, i, 0] = env.reset(domain=(b, i))" in refused.value.hint


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("env.obs_space", "env.observation_space"),
        ("rc.DNNBuilder", "rc.nn.DNNBuilder"),
        ("rc.Adam", "rc.optim.Adam"),
        ('rc.rl.env.make("gym.CartPole-v1")', "rc.rl.env.make('CartPole-v1')"),
    ],
)
def test_names_of_the_papers(word: str, line: str) -> None:
    with rc.Context(dims="t"):
        given = {"rc": rc, "env": rc.rl.env.make("CartPole-v1")}
        with pytest.raises(RecurraError) as refused:
            eval(word, given)
        assert refused.value.hint == f"write {line}"
        eval(line, given)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("env.reset()", "o[b, i, 0] = env.reset(domain=(b, i))"),
        ("env.reset(seed=0)", "o[b, i, 0] = env.reset(domain=(b, i))"),
        ("env.step()", "o[b, i, t + 1], r, d = env.step(a)"),
        ("env.step(1, 2)", "o[b, i, t + 1], r, d = env.step(a)"),
    ],
)
def test_arguments_that_do_not_fit(call: str, line: str) -> None:
    with rc.Context(dims="t"):
        env = rc.rl.env.traceable(lambda u: u, moved, observation=rc.f32[1], actions=2)
        with pytest.raises(RecurraError, match="does not fit") as refused:
            eval(call, {"env": env})
    assert refused.value.hint == f"write {line}"
