"""Metrics of training have CleanRL's tags and mean what they mean there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import recurra as rc
from recurra.cli import main
from recurra.report.runs import RunFolder, curves
from recurra.rl.recipes import Ppo
from recurra.rl.train import TrainingRecorder

Arrays = dict[str, np.ndarray]
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
    rows = rows_of(tmp_path, "ppo", *small, "--epochs", "1", "--minibatches", "1")
    told = [r for r in rows if r.keys() & ON_EPISODES]
    assert 0 < len(told) < len(rows)
    assert max(r["charts/episodic_length"] for r in told) > 7
    for r in told:
        assert r["charts/episodic_length"] == r["charts/episodic_return"]


@pytest.mark.slow
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
        rc.output(r=r, d=u > 0.9, x=rc.rl.episode_returns(r, u > 0.9, over=(b, t)))
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


def forward(p: Arrays, net: str, x: np.ndarray) -> np.ndarray:
    """A network of two layers, tanh between."""
    hidden = np.tanh(x @ p[f"W{net}1"] + p[f"b{net}1"])
    return hidden @ p[f"W{net}2"] + p[f"b{net}2"]


def log_probability(p: Arrays, o: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Of actions that were taken, [..]."""
    y = forward(p, "a", o)
    normal = y - np.log(np.exp(y).sum(axis=-1, keepdims=True))
    return np.take_along_axis(normal, a[..., None], -1)[..., 0]


def returns_of(p: Arrays, got: Arrays, i: int, settings: Ppo) -> tuple[np.ndarray, np.ndarray]:
    """Values and returns [B, T] as CleanRL has them: advantages of GAE, and values."""
    v = forward(p, "c", got["o"][:, i].astype("f8"))[..., 0]
    last = forward(p, "c", got["step_0"][i, -1].astype("f8"))[..., 0]
    adv, carry = np.zeros_like(v), np.zeros(len(v))
    for t in reversed(range(v.shape[1])):
        going = 1.0 - got["step_3"][i, t]
        delta = got["r"][:, i, t] + settings.gamma * going * last - v[:, t]
        carry = adv[:, t] = delta + settings.gamma * settings.gae * going * carry
        last = v[:, t]
    return v, adv + v


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_metrics_of_ppo_are_those_of_cleanrl_for_the_same_batch(backend: str) -> None:
    """approx_kl of the last minibatch, clipfrac of all, explained_variance of the returns.

    Steps that are only resets, which CleanRL's environments do not have, count for nothing.
    """
    settings = Ppo(
        iterations=3, rows=3, steps=8, epochs=3, minibatches=2, hidden=(5,), lr=0.05, clip=0.1
    )
    ctx, bounds = settings.program()
    names = [f"{x}{net}{k}" for x in "Wb" for net in "ac" for k in (1, 2)]
    ctx.builder.logs |= {x: x for x in (*names, "o", "a", "r", "k", "step_0", "step_3", "step_6")}
    got = ctx.compile(bounds, backend=backend).run(seed=4)
    seen = set[bool]()
    for i in range(settings.iterations):

        def at(e: int, m: int, i: int = i) -> Arrays:
            return {x: got[x][i, e, m].astype("f8") for x in names}

        o, a = got["o"][:, i].reshape(24, -1).astype("f8"), got["a"][:, i].reshape(24)
        real = got["step_6"][i].T.reshape(24)
        old, clipped, kl = log_probability(at(0, 0), o, a), list[float](), 0.0
        for e, m in np.ndindex(settings.epochs, settings.minibatches):
            k = got["k"][i, e, m]
            k = k[real[k]]
            logratio = log_probability(at(e, m), o[k], a[k]) - old[k]
            ratio = np.exp(logratio)
            clipped.append(float((np.abs(ratio - 1.0) > settings.clip).mean()))
            kl = float(((ratio - 1.0) - logratio).mean())
        assert got["approx_kl"][i] == pytest.approx(kl, rel=1e-3, abs=1e-6)
        assert got["clipfrac"][i] == pytest.approx(np.mean(clipped), abs=1e-6)
        v, y = (x.reshape(24)[real] for x in returns_of(at(0, 0), got, i, settings))
        want = 1.0 - np.var(y - v) / np.var(y)
        assert got["explained_variance"][i] == pytest.approx(want, rel=1e-3, abs=1e-4)
        seen |= {kl > 1e-3 and 0.0 < np.mean(clipped) < 1.0}
    assert True in seen


def test_speed_is_steps_by_seconds_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPS is CleanRL's: of a run that goes on, the steps of this process alone."""
    clock = iter([100.0, 102.0, 105.0])
    monkeypatch.setattr("recurra.rl.train.time.monotonic", lambda: next(clock))
    rows = list[dict[str, float]]()
    run: Any = SimpleNamespace(log=lambda step, **row: rows.append({"step": step, **row}))
    progress: Any = SimpleNamespace(update=lambda *_, **__: None)
    record = TrainingRecorder(run, Ppo(rows=4, steps=8), progress, cast(Any, None), env_steps=64)
    for first in (2, 4):
        record.step(first, {"episodes": np.zeros(2), "approx_kl": np.zeros(2)})
    assert [r["step"] for r in rows] == [3, 4, 5, 6]
    assert [r["global_step"] for r in rows] == [96, 128, 160, 192]
    assert [r["charts/SPS"] for r in rows] == [32.0, 32.0, 128 / 5, 128 / 5]


def test_returns_of_many_seeds_are_those_of_one_run_each() -> None:
    """A dim of seeds changes nothing of what each has alone."""
    rng = np.random.default_rng(3)
    r, d = rng.normal(size=(3, 2, 4, 5)).astype("f4"), rng.random((3, 2, 4, 5)) < 0.15

    def episodic(dims: str, r: np.ndarray, d: np.ndarray) -> np.ndarray:
        ctx = rc.Context(dims=dims)
        with ctx as pairs:
            order = [x for x, _ in pairs]
            b, t = order[-3], order[-1]
            reward, done = rc.input(rc.f32, order, "r"), rc.input(rc.boolean, order, "d")
            rc.output(x=rc.rl.episode_returns(reward, done, over=(b, t)))
        bounds = {n: size for (_, n), size in zip(pairs, r.shape, strict=True)}
        return ctx.run(bounds, inputs={"r": r, "d": d}, backend="numpy")["x"]

    whole = episodic("s b i t", r, d)
    alone = [episodic("b i t", *x) for x in zip(r, d, strict=True)]
    np.testing.assert_array_equal(whole, np.stack(alone))
    assert len(np.unique(whole)) > 6
