"""Metrics of training have CleanRL's tags and mean what they mean there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.cli import main
from recurra.report.runs import RunFolder, curves

ON_EPISODES = {"charts/episodic_return", "charts/episodic_length"}


def rows_of(out: Path, *options: str) -> list[dict[str, Any]]:
    assert main(["train", *options, "--out", str(out), "--backend", "numpy"]) == 0
    (folder,) = out.iterdir()
    return RunFolder(folder).rows()


@pytest.mark.slow
def test_nothing_is_said_of_episodes_before_one_has_ended(tmp_path: Path):
    """A pendulum that is not swung up ends after 500 steps, with a return of -500."""
    small = ["--env", "Acrobot-v1", "--rows", "2", "--steps", "100", "--hidden", "4"]
    small += ["--epochs", "1", "--minibatches", "1", "--iterations", "7"]
    rows = rows_of(tmp_path, "ppo", *small)
    assert [r["global_step"] for r in rows] == [200 * k for k in range(1, 8)]
    told = [k for k, r in enumerate(rows) if r.keys() & ON_EPISODES]
    assert told
    assert told[0] >= 2  # an arm that is moved at random is not up within 200 steps
    assert next(iter(curves(rows))) == "charts/episodic_return"  # the headline of the report
    for k in told:
        assert rows[k].keys() >= ON_EPISODES
        length = rows[k]["charts/episodic_length"]
        assert rows[k]["charts/episodic_return"] in (-length, 1.0 - length)
    for r in rows:
        assert {"losses/approx_kl", "losses/clipfrac", "losses/explained_variance"} <= r.keys()
        assert 0.0 <= r["losses/clipfrac"] <= 1.0
        assert r["losses/explained_variance"] <= 1.0
        assert r["charts/SPS"] > 0


@pytest.mark.slow
def test_lengths_and_returns_of_episodes_are_true(tmp_path: Path):
    """CartPole rewards every step with 1, and an episode is longer than an iteration here."""
    small = ["--rows", "3", "--steps", "7", "--hidden", "4", "--iterations", "12"]
    rows = rows_of(tmp_path, "ppo", *small, "--epochs", "1", "--minibatches", "3")
    told = [r for r in rows if r.keys() & ON_EPISODES]
    assert 0 < len(told) < len(rows)
    assert max(r["charts/episodic_length"] for r in told) > 7
    for r in told:
        assert r["charts/episodic_length"] == r["charts/episodic_return"]


def test_steps_of_the_environment_go_on(tmp_path: Path):
    """Of episodes that absorb those are counted that are alive; resumed, they go on."""
    small = ["--rows", "2", "--steps", "9", "--hidden", "4", "--iterations", "3"]
    before = rows_of(tmp_path, "reinforce", *small)
    lengths = [2 * r["charts/episodic_length"] for r in before]
    assert [r["global_step"] for r in before] == list(np.cumsum(lengths))
    (folder,) = tmp_path.iterdir()
    assert main(["train", "reinforce", "--resume", str(folder), "--iterations", "5"]) == 0
    rows = RunFolder(folder).rows()
    lengths = [2 * r["charts/episodic_length"] for r in rows]
    assert [r["global_step"] for r in rows] == list(np.cumsum(lengths))
    assert [r["step"] for r in rows] == [1, 2, 3, 4, 5]
    assert len({tuple(r) for r in rows}) == 1  # one kind of row


@pytest.mark.parametrize("dims", ["b i t", "s b i t", "b s i t"])
def test_returns_of_episodes_by_hand(dims: str):
    """Also with a dim of seeds, each of which has episodes of its own."""
    ctx = rc.Context(dims=dims)
    with ctx as pairs:
        by = dict(zip(dims.split(), pairs, strict=True))
        b, t = by["b"][0], by["t"][0]
        order = [x for x, _ in pairs]
        r, u = rc.uniform(order), rc.uniform(order)
        rc.output(r=r, d=u > 0.9, x=rc.rl.episodic(r, u > 0.9, over=(b, t)))
    sizes = {"s": 2, "b": 3, "i": 6, "t": 5}
    got = ctx.run({n: sizes[str(d)] for d, n in pairs}, backend="numpy")
    if "s" not in dims:
        got = {k: v[None] for k, v in got.items()}
    if dims == "b s i t":
        got["r"], got["d"] = (np.swapaxes(got[k], 0, 1) for k in "rd")
    for r_, d_, x in zip(got["r"], got["d"], got["x"], strict=True):
        so_far, last = np.zeros(3), 0.0
        for k in range(6):
            ended: list[float] = []
            for step in range(5):
                so_far += r_[:, k, step]
                ended += list(so_far[d_[:, k, step]])
                so_far[d_[:, k, step]] = 0.0
            last = float(np.mean(ended)) if ended else last
            assert x[k] == pytest.approx(last, rel=1e-5)


def test_explained_variance_by_hand():
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        v, y = rc.uniform((b, t)), rc.normal((b, t))
        w = rc.uniform((b, t)) > 0.5
        rc.output(v=v, y=y, w=w, x=rc.rl.explained_variance(v, y, over=(b, t), where=w))
    got = ctx.run({B: 4, T: 9}, backend="numpy")
    v_, y_ = got["v"][got["w"]], got["y"][got["w"]]
    assert got["x"] == pytest.approx(1 - np.var(y_ - v_) / np.var(y_), rel=1e-4)


def test_explained_variance_of_what_does_not_vary():
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        v, y = rc.uniform((t,)), rc.value(t, "f32") * 0.0 + 2.0
        rc.output(x=rc.rl.explained_variance(v, y, over=(t,)))
    assert ctx.run({T: 4}, backend="numpy")["x"] == 0.0
