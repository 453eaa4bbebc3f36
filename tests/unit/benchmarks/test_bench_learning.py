"""Learning: CleanRL's scheme against the oracle, our recipe beside it, scores, the picture."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.__main__ import main
from benchmarks.harness import Disagreement
from benchmarks.learning import episodes, recurra_program, suite
from benchmarks.learning.cleanrl import Trainer
from benchmarks.learning.curves import picture, running
from benchmarks.learning.runs import PROGRAMS, Run, learn
from benchmarks.learning.settings import Settings
from benchmarks.ppo import oracle
from recurra.frontend.context import compiling
from recurra.rl.recipes import Ppo

TINY = Settings(total=48, rows=2, steps=12, epochs=2, minibatches=2, width=8)


def theta_of(trainer: Trainer) -> oracle.Theta:
    """Parameters by the oracle's names and in its layout."""
    found: oracle.Theta = {}
    for net in ("actor", "critic"):
        linears = [x for x in getattr(trainer.agent, net) if isinstance(x, torch.nn.Linear)]
        for k, x in enumerate(linears, 1):
            found[f"{net}_W{k}"] = x.weight.detach().numpy().T.astype(np.float64)
            found[f"{net}_b{k}"] = x.bias.detach().numpy().astype(np.float64)
    return found


def test_the_scheme_makes_the_oracles_step():
    """Advantages, clipped losses and Adam, with ratios and values on both sides of their clips."""
    trainer = Trainer(episodes.recorded("CartPole-v1"), 1, replace(TINY, steps=40))
    with torch.no_grad():
        trainer.act()
        adv = trainer.advantages()
        trainer.log_p += 0.3 * torch.randn(40, 2)
        trainer.value += 0.3 * torch.randn(40, 2)
    assert trainer.done.sum() > 0, "some episode has to end"
    theta = theta_of(trainer)
    o = np.concatenate([trainer.o.numpy(), trainer.now.numpy()[None]]).astype(np.float64)
    a, done = trainer.a.numpy(), trainer.done.numpy().astype(bool)
    stored = (x.numpy().astype(np.float64) for x in (trainer.log_p, trainer.value))
    batch = oracle.Batch(o, a, trainer.r.numpy().astype(np.float64), done, *stored)
    acted = oracle.recorded(theta, o, a, batch.r, done)
    expected, _ = oracle.advantages(theta, acted)
    np.testing.assert_allclose(adv.numpy(), expected, rtol=1e-5, atol=1e-5)

    adv64 = adv.numpy().astype(np.float64)
    weight = (adv64 - adv64.mean()) / (adv64.std(ddof=1) + 1e-8)  # of a sample, as published
    gradient = oracle.gradient(theta, batch, weight, adv64 + batch.value)
    after = oracle.start(theta).after(gradient).theta
    trainer.learn(torch.randperm(80), adv.reshape(-1))
    for name, x in theta_of(trainer).items():
        np.testing.assert_allclose(x, after[name], rtol=1e-5, atol=2e-7, err_msg=name)


def test_the_rate_falls_in_equal_steps():
    trainer, rates = Trainer(episodes.recorded("CartPole-v1"), 1, TINY), []
    trainer.iterations(lambda _: rates.append(trainer.adam.param_groups[0]["lr"]))
    assert rates == pytest.approx([2.5e-4, 1.25e-4])


def test_ours_is_the_recipe_of_the_command():
    assert recurra_program.recipe("CartPole-v1", Settings()) == Ppo()


@pytest.mark.slow
@pytest.mark.parametrize("who", PROGRAMS)
def test_a_run_notes_its_episodes_and_its_work(who: str, monkeypatch, capfd):
    """Both programs: as many steps, as many numbers, other episodes for another seed."""
    monkeypatch.setattr("benchmarks.learning.runs.Settings", lambda total: TINY)
    with compiling(backend="numpy"):  # XLA takes longer than all the rest
        one, two = (Run(**fields) for fields in learn(who, "CartPole-v1", [1, 2], 48))
    assert (one.steps, one.parameters) == (48, 2 * (5 * 8 + 9 * 8) + 9 * 2 + 9)
    assert suite.same_work([one], [two]) == "work"
    assert one.episodes != two.episodes
    ends = [end for end, _ in one.episodes]
    assert ends == sorted(ends)
    assert 0 < ends[-1] <= 48
    assert sum(r for _, r in one.episodes) <= 48  # one for every step
    assert f"CartPole-v1: {who}: seed 1: {one.score:.1f}" in capfd.readouterr().err


def made(who: str, env: str, seed: int, returns: list[float]) -> Run:
    return Run(who, env, seed, [(10 * k + 10, r) for k, r in enumerate(returns)], 5000, 7)


def test_the_score_is_of_the_last_hundred_episodes():
    assert made("a", "E", 1, [0.0] * 50 + [3.0] * 100).score == 3.0
    assert made("a", "E", 1, [1.0, 2.0]).score == 1.5


@given(st.lists(st.floats(-500, 500), min_size=1, max_size=300), st.integers(1, 400))
def test_the_curve_is_the_mean_of_the_last_hundred(returns: list[float], count: int):
    run = made("a", "E", 1, returns)
    at = np.array([9.0, 10.0 * count])
    none, found = running(run, at)
    assert np.isnan(none)  # no episode has ended yet
    assert found == pytest.approx(np.mean(returns[:count][-100:]), abs=1e-9)


def test_the_interval_is_students():
    scores = np.array([480.0, 490.0, 500.0, 470.0, 495.0])
    expected = stats.t.interval(0.95, 4, scores.mean(), stats.sem(scores))
    assert suite.interval(scores) == pytest.approx(expected)
    same = np.full(5, 500.0)
    assert suite.interval(same) == (500.0, 500.0)
    assert suite.interval(scores, same) == pytest.approx(expected)


def test_more_is_better_also_of_costs():
    assert suite.better(500, 475) > 1 > suite.better(400, 475)
    assert suite.better(-80, -100) == 1.25
    assert suite.better(-120, -100) < 1


def all_runs() -> list[Run]:
    return [
        made(who, env, seed, [base + 5 * k + seed for _ in range(120)])
        for env, base in (("CartPole-v1", 480.0), ("Acrobot-v1", -90.0))
        for k, who in enumerate(PROGRAMS)
        for seed in (1, 2, 3)
    ]


def test_rows_are_beside_goals_and_the_scheme(capfd):
    rows = suite.rows(all_runs())
    assert [(r.peer, r.theirs) for r in rows] == [
        ("goal", 475.0), ("CleanRL's scheme", 487.0), ("goal", -100.0), ("CleanRL's scheme", -83.0),
    ]  # fmt: skip
    assert [r.ours for r in rows] == [482.0, 482.0, -88.0, -88.0]
    assert all(r.ci95[0] < r.ratio < r.ci95[1] and r.checked == "work" for r in rows)
    assert rows[0].ratio > 1 > rows[1].ratio
    assert rows[2].ratio > 1 > rows[3].ratio
    assert rows[0].case == "CartPole-v1, 3 seeds of 5,000 steps"
    assert "recurra: 482.0 [479.5, 484.5] of 481.0, 482.0, 483.0" in capfd.readouterr().err


def test_other_work_is_refused():
    runs = all_runs()
    with pytest.raises(Disagreement, match="do not do the same work"):
        suite.rows([replace(runs[0], steps=4999), *runs[1:]])


def test_the_picture_has_a_line_for_each_program():
    root = ElementTree.fromstring(picture(all_runs(), suite.GOALS))
    texts = [x.text for x in root.iter() if x.tag.endswith("text")]
    assert {"CartPole-v1", "Acrobot-v1", "recurra, 3 seeds", "100"} & set(texts) == {
        "CartPole-v1", "Acrobot-v1", "recurra, 3 seeds",
    }  # fmt: skip
    strokes = [x for x in root.iter() if x.get("stroke-width") == "2"]
    assert len(strokes) == 4


def test_the_command_keeps_what_it_found(monkeypatch, tmp_path, capsys):
    asked = []

    def in_worker(function, arguments, threads):
        asked.append(arguments)
        return [vars(made(arguments["who"], arguments["env"], s, [500.0])) for s in (1, 2)]

    monkeypatch.setattr(suite, "in_worker", in_worker)
    out = tmp_path / "out"
    assert main(["learning", "--quick", "--json", "--out", str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["bench"], len(report["rows"])) == ("learning", 4)
    assert len(json.loads((out / "episodes.json").read_text())) == 8
    assert (out / "curves.svg").read_text().startswith("<svg")
    assert {a["total"] for a in asked} == {suite.QUICK_TOTAL}
    assert main(["ppo", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "--out is for the bench learning, memory, decode and mapping, not ppo" in told
