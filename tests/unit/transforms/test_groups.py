"""Rows that take turns at the host: the same answer; no call waits for another group's launch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from actor_critic import BOUNDS, actor_critic
from recurra.errors import RecurraError, ScheduleError
from recurra.runtime.executable import Executable


def host(program: Any) -> str:
    return program.execution.text


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("episodes", ["autoreset", "absorbing"])
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_the_same_rows(episodes: str, backend: str):
    """Row k of all is row k of its group, from one iteration to the next."""
    ctx = actor_critic(episodes)
    whole = ctx.compile(BOUNDS, backend=backend).run(seed=3)
    some = (4,) if episodes == "autoreset" else (2,)
    for groups in (2, 4) if backend == "numpy" else some:
        found = ctx.compile(BOUNDS, backend=backend, groups=groups).run(seed=3)
        for name in ("o", "a", "d"):
            assert found[name].shape == whole[name].shape
            assert np.array_equal(found[name], whole[name]), f"{name} in {groups} groups"
        for name in ("loss", "first"):
            np.testing.assert_allclose(found[name], whole[name], rtol=1e-5)


@pytest.mark.slow
def test_the_pass_changes_no_answer(monkeypatch: pytest.MonkeyPatch):
    """Every pass of it is compared with the oracle, with stand-ins for what is called."""
    monkeypatch.setenv("RECURRA_CHECK", "1")
    program = actor_critic("autoreset").compile(dict(B=4, I=2, T=3), groups=2)
    assert "b: 2 groups of 2 take turns at the host" in program.compiled.stages.decisions


def test_a_call_waits_for_its_own_group_only():
    """Each is given the buffers of its group, as the last launch but one, or an older one, left
    them; what follows a call and leads to the next is one launch."""
    text = host(actor_critic("autoreset", outputs=False).compile(BOUNDS, groups=2))
    (step,) = set(re.findall(r"step = step_call\((.*)\)", text))
    assert step == "(i, t, bz), a_store[bz], token_store[bz]"
    steady = text[text.index("for t in range(1, 12):") :].splitlines()
    assert [line.strip().split(" ")[0] for line in steady[1:3]] == ["for", "step"]
    assert "a_store[bz]" in "".join(steady[3:9])


def test_learning_is_one_launch_for_each_group():
    text = host(actor_critic("autoreset", outputs=False).compile(BOUNDS, groups=2))
    learning = text[text.index("for t in range(12, 13):") :]
    assert "for t_back" not in learning
    assert re.search(r"for bz in range\(0, 2\):\n +\(d_Wa1_so_far", learning)


def stopped(program: Executable, folder: Path, after: int) -> None:
    """A run that is saved after some iterations, and its hosts, which hold nothing any more."""
    for step in program.execution.steps(5):
        if step.dim == "i" and step.hi == after:
            program.saver.save(folder, step, 5)
            break
    for owner in program.saver.hosts.values():
        owner.load_state_dict(None)


def test_what_is_saved_goes_on(tmp_path: Path):
    program = actor_critic("autoreset").compile({**BOUNDS, "I": 6}, backend="numpy", groups=2)
    whole = program.run(seed=5)
    stopped(program, tmp_path, after=3)
    rest = program.run(resume=tmp_path)
    for name in ("o", "a", "d"):
        assert np.array_equal(whole[name][:, 3:], rest[name]), name
    for name in ("loss", "first"):
        assert np.array_equal(whole[name][3:], rest[name]), name


@pytest.mark.slow
def test_one_group_does_not_go_on_as_two(tmp_path: Path):
    ctx = actor_critic("autoreset")
    stopped(ctx.compile(BOUNDS, backend="numpy"), tmp_path, after=1)
    with pytest.raises(RecurraError, match="does not fit the program as it is compiled"):
        ctx.compile(BOUNDS, backend="numpy", groups=2).run(resume=tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(groups=3), "3 does not divide B = 8"),
        (dict(groups=0), "a program cannot run on 0 groups"),
        (dict(groups="two"), "a program cannot run on 'two' groups"),
        (dict(groups=2, workers=2), "workers=2 and groups=2 are both asked for"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], says: str):
    with pytest.raises(RecurraError, match=re.escape(says)):
        actor_critic("autoreset").compile(BOUNDS, backend="numpy", **options)


def test_rows_that_the_data_end_do_not_take_turns():
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, _), (t, T)):
        env = rc.rl.env.make("CartPole-v1", vectorization_mode="sync")
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        o[b, i, t + 1], r, d = env.step((o[b, i, t].sum() > 0.0).cast("i32"))
        rc.log(steps=r[0:B, i, 0:T].sum())
    bounds = {B: 4, "I": 2, T: rc.until(d, max=9)}
    with pytest.raises(ScheduleError, match="the data end its rows"):
        ctx.compile(bounds, groups=2, backend="numpy")


def test_there_must_be_rows_on_the_host():
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        rc.output(x=rc.uniform((t,)))
    with pytest.raises(ScheduleError, match="no environment is stepped on the host"):
        ctx.compile({T: 3}, groups=2)


def test_a_function_of_all_rows_has_no_parts():
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, B), (t, T)):
        y = rc.call(lambda x: x - x.mean(), rc.f32, rc.uniform((b, t)), batch=(b,))
        rc.output(y=y)
    with pytest.raises(ScheduleError, match="is called for all rows: only an environment has part"):
        ctx.compile({B: 4, T: 3}, groups=2)


def test_rows_that_read_each_other():
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("CartPole-v1", vectorization_mode="sync")
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        other = o[B - 1 - b, i, t]
        a = (other.sum() > 0.0).cast("i32")
        o[b, i, t + 1], _, d = env.step(a)
        rc.output(d=d)
    with pytest.raises(ScheduleError, match="o, of each row, is read by more than its own row"):
        ctx.compile(dict(B=4, I=2, T=3), groups=2)
