"""The suite of the PPO bench: contestants in processes, what is refused, what is reported."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppo_contestants import TINY, broken, other, steady, wrong
from recurra import cli
from recurra.bench.harness import Case, Disagreement, Row
from recurra.bench.ppo import suite
from recurra.bench.ppo.installed import Peer, Recipe, _made
from recurra.bench.ppo.limit import Rates, limit_ms
from recurra.bench.ppo.process import Ended, Process
from recurra.bench.ppo.suite import Contest, contest, memory, per_doubling, together
from recurra.bench.ppo.work import Work

HERE = "ppo_contestants"


def peer(function: Any, real: bool = False) -> Peer:
    return Peer(f"{HERE}:{function.__name__}", real=real)


@pytest.fixture(autouse=True)
def found_by_children(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    monkeypatch.setenv("PYTHONPATH", str(request.path.parent))


def test_a_contestant_in_a_process_answers_and_is_timed():
    with Process(f"{HERE}:steady", replace(TINY, B=50), 1) as running:
        them = running.contestant()
        assert (them.name, them.same_draws, dict(them.answer())) == ("steady", True, {"reward": 6})
        before = running.peak_mb()
        cpu, wall = running.run(1)
        assert cpu > 0
        assert wall > 0
        assert 50 <= running.peak_mb() - before < 80


def test_a_process_that_ends_is_told(capfd):
    with pytest.raises(Ended) as error:
        Process(f"{HERE}:broken", TINY, 1)
    assert str(error.value) == (
        f"the process of {HERE}:broken has ended\n  its code is 1; the reason is printed above"
    )
    out, err = capfd.readouterr()
    assert out == ""
    assert "it cannot be made" in err
    assert "what a framework says" in err


CASE = Case(str(TINY))
FEW = suite.Protocol(pairs=3, iterations=1)


def test_no_time_is_taken_when_answers_disagree():
    with pytest.raises(Disagreement, match="steady and wrong do not agree on reward"):
        contest(peer(steady), [peer(wrong)], CASE, TINY, FEW)


def test_a_real_peer_that_cannot_run_has_no_row(capfd):
    peers = [peer(broken, real=True), peer(wrong, real=True), peer(other)]
    found = contest(peer(steady), peers, CASE, TINY, FEW)
    assert [(row.peer, row.checked) for row in found.rows] == [("other", "exact")]
    assert found.theirs["other"].shape == (3,)
    err = capfd.readouterr().err
    assert f"no row of {HERE}:broken" in err
    assert f"no row of {HERE}:wrong: steady and wrong do not agree on reward" in err
    with pytest.raises(Ended):
        contest(peer(steady), [peer(broken)], CASE, TINY, FEW)


def test_memory_is_above_that_of_the_runtime():
    (row,) = memory(peer(steady), [peer(other)], replace(TINY, B=20))
    assert (row.metric, row.peer) == ("peak_rss_mb", "other")
    assert 15 < row.ours < 25  # 20 MB, less 2
    assert row.ratio == pytest.approx(1, abs=0.2)


def taken(work: Work, ours: float, theirs: float) -> Contest:
    return Contest(work, [], np.full(5, ours), {"peer": np.full(5, theirs)})


def test_the_geometric_mean_is_of_ratios():
    row = together([taken(Work(), 1.0, 2.0), taken(Work(B=128), 10.0, 80.0)], "peer")
    assert row.ratio == pytest.approx(4.0)
    assert row.ci95 == pytest.approx((4.0, 4.0))
    assert row.ours == pytest.approx(10**0.5)


def test_time_per_doubling_is_a_slope_over_one_size():
    contests = [taken(Work(T=n), n**1.5, 1.0) for n in (125, 250, 500)] + [taken(Work(B=9), 0, 0)]
    row = per_doubling(contests, "T")
    assert row.ours == pytest.approx(2**1.5)
    assert row.ratio == pytest.approx(2.2 / 2**1.5)
    assert row.case == "T in 125, 250, 500 1T"


def test_the_limit_is_the_least_time_of_the_arithmetic():
    work = Work()
    free = Rates(products=1e11, tanh=np.inf, copy=np.inf)
    assert limit_ms(work, free, 1) == pytest.approx(work.flops(keep=True) / 1e8)
    assert limit_ms(work, free, 2) == pytest.approx(work.flops(keep=True) / 2e8)
    assert limit_ms(work, replace(free, tanh=1e9), 1) == pytest.approx(97.0 + 32.8, abs=0.5)
    slow = replace(free, copy=1e9)  # too slow to keep anything
    assert limit_ms(work, slow, 1) == pytest.approx(work.flops(keep=False) / 1e8)


def test_the_suite_gives_rows(monkeypatch):
    """From front to back, with the two cheapest programs at tiny sizes."""
    monkeypatch.setattr(suite, "DEFAULT", TINY)
    monkeypatch.setattr(suite, "QUICK_GRID", (replace(TINY, T=12), replace(TINY, B=8)))
    for name in ("REGIONS", "SCHEMES"):
        monkeypatch.setattr(suite, name, ())
    for name in ("BEST", "FAIR", "SHARDED"):
        monkeypatch.setattr(suite, name, peer(other))
    monkeypatch.setattr(suite, "in_worker", lambda *_, **__: dict(products=1.0, tanh=1.0, copy=1.0))
    monkeypatch.setattr(suite, "REGIONS", (peer(other),))
    rows = suite.suite(steady, quick=True)
    assert {row.metric for row in rows} == {"iteration_ms", "peak_rss_mb", "times_per_doubling"}
    assert [row.case for row in rows if row.peer == "budget"] == ["T in 6, 12 1T", "B in 4, 8 1T"]
    assert all(isinstance(row, Row) and row.ratio > 0 for row in rows)
    assert any("2T wall" in row.case for row in rows)


def test_an_environment_that_cannot_be_made_is_told(tmp_path, capfd, monkeypatch):
    """Not taken for ready, either; one that can be made is, from then on."""
    recipe, steps, codes = Recipe("peer", ("a==1",), ("b==2",)), [], [0, 1, 0, 0, 0]

    def run(step: list[str], **_: Any) -> SimpleNamespace:
        steps.append(step[1:])
        (tmp_path / "peer").mkdir(exist_ok=True)
        return SimpleNamespace(returncode=codes.pop(0))

    monkeypatch.setattr(subprocess, "run", run)
    assert _made(recipe, tmp_path / "peer") is None
    pip = ["-m", "pip", "install", "--quiet"]
    assert steps == [["-m", "venv", str(tmp_path / "peer")], [*pip, "a==1"]]
    assert "no row of peer: `" in capfd.readouterr().err
    assert _made(recipe, tmp_path / "peer") is not None
    assert steps[2:] == [*steps[:2], [*pip, "--no-deps", "b==2"]]
    assert _made(recipe, tmp_path / "peer") == tmp_path / "peer" / "bin" / "python"
    assert len(steps) == 5


def test_peers_are_for_this_bench_only(capsys):
    assert cli.main(["bench", "core", "--peers", "somewhere"]) == 2
    assert "--peers is for the bench ppo, not for core" in capsys.readouterr().err
