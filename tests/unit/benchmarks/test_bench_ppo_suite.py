"""The suite of the PPO bench: contestants in processes, what is refused, what is reported."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import machine
from benchmarks.__main__ import main
from benchmarks.harness import Case, Row, failures
from benchmarks.ppo import contest as one_case
from benchmarks.ppo import starts, suite
from benchmarks.ppo.contest import Contest, contest, rounds_of, stretch
from benchmarks.ppo.installed import Peer, Recipe, _made
from benchmarks.ppo.installed.gate import Gate
from benchmarks.ppo.memory import memory
from benchmarks.ppo.roofline import Rates, limit_ms
from benchmarks.ppo.table import per_doubling, together
from benchmarks.ppo.workload import Work
from benchmarks.process import Ended, Process
from benchmarks.worker import find
from documents import SUPPORT
from ppo_contestants import TINY, broken, other, steady, tired, wrong
from recurra.errors import RecurraError

HERE = "ppo_contestants"


def peer(function: Any, real: bool = False) -> Peer:
    return Peer(f"{HERE}:{function.__name__}", real=real)


@pytest.fixture(autouse=True)
def found_by_children(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))


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
WALL = Case(str(TINY), threads=2, clock="wall")
FEW = 3


def test_no_time_is_taken_when_answers_disagree(capfd):
    """What is written here has a row that says so, and the others go on."""
    found = contest(peer(steady), [peer(wrong), peer(broken), peer(other)], CASE, TINY, FEW)
    assert [(row.peer, row.checked) for row in found.rows] == [
        ("wrong", "differs"), ("broken", "failed"), ("other", "exact"),
    ]  # fmt: skip
    assert [row.theirs for row in failures(found.rows)] == [0.0, 0.0]
    assert list(found.theirs) == ["other"]
    assert "steady and wrong do not agree on reward" in capfd.readouterr().err
    with pytest.raises(Ended):
        contest(peer(broken), [peer(other)], CASE, TINY, FEW)


def test_a_real_peer_that_cannot_run_has_no_row(capfd):
    peers = [peer(broken, real=True), peer(wrong, real=True), peer(other)]
    found = contest(peer(steady), peers, CASE, TINY, FEW)
    assert [(row.peer, row.checked) for row in found.rows] == [("other", "exact")]
    assert found.theirs["other"].shape == (3,)
    err = capfd.readouterr().err
    assert f"no time of {HERE}:broken" in err
    assert f"no time of {HERE}:wrong: steady and wrong do not agree on reward" in err


def test_a_real_peer_that_ends_while_it_is_timed_has_no_row(capfd):
    found = contest(peer(steady), [peer(tired, real=True), peer(other)], CASE, TINY, FEW)
    assert [row.peer for row in found.rows] == ["other"]
    assert list(found.theirs) == ["other"]
    assert "no time of ppo_contestants:tired: tired has ended while" in capfd.readouterr().err
    found = contest(peer(steady), [peer(tired)], CASE, TINY, FEW)
    assert [(row.peer, row.checked) for row in found.rows] == [("tired", "failed")]


def test_wall_times_are_refused_on_a_busy_machine(monkeypatch, capfd):
    """Before anything is started, and after the timing if it became busy meanwhile."""
    monkeypatch.setattr(machine, "busy", lambda: 1.5)
    assert contest(peer(broken), [], WALL, TINY, FEW).rows == []
    assert "no rows: 1.5 cores are busy with other things" in capfd.readouterr().err
    loads = [0.0, 1.5]
    monkeypatch.setattr(machine, "busy", lambda: loads.pop(0))
    found = contest(peer(steady), [peer(other)], WALL, TINY, FEW)
    assert (found.rows, loads) == ([], [])
    assert contest(peer(steady), [peer(other)], CASE, TINY, FEW).rows, "process CPU is taken"


def test_the_kernel_tells_how_busy_it_is():
    """One process that spins is about one core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinning:
        try:
            assert machine.busy(0.3) > 0.2
        finally:
            spinning.kill()


class Clock:
    """A process whose iterations take so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(self, iterations: int) -> tuple[float, float]:
        return 0.0, self.seconds * iterations


@pytest.mark.parametrize(
    ("seconds", "fewest", "count"),
    [(0.001, 1, 8), (0.001, 2, 8), (0.1, 1, 2), (0.16, 2, 2), (1.6, 2, 2), (5.0, 1, 1)],
)
def test_a_stretch_is_filled(seconds: float, fewest: int, count: int):
    assert stretch(Clock(seconds), fewest) == count  # pyright: ignore[reportArgumentType]


def test_heavy_cases_have_fewer_rounds():
    rounds = {str(work): rounds_of(work, quick=False) for work in (suite.DEFAULT, *suite.GRID)}
    assert rounds.pop("T=250 B=512 width=256") == 8
    assert set(rounds.values()) == {20}
    assert rounds_of(Work(width=256), quick=True) == 4


def test_memory_is_above_that_of_the_runtime():
    work = replace(TINY, B=20)
    (row,) = memory(peer(steady), [peer(other)], work, {})
    assert (row.metric, row.peer) == ("peak_rss_mb", "other")
    assert 15 < row.ours < 25  # 20 MB, less 2
    assert row.ratio == pytest.approx(1, abs=0.2)


def test_peaks_that_are_known_are_not_taken_again():
    """Each contest has them, from before the answer was asked for."""
    work = replace(TINY, B=10)
    known = contest(peer(steady), [peer(other)], Case("B=10"), work, 1).peaks
    assert [name for name, _ in known.values()] == ["steady", "other"]
    doubled = {p: (name, mb + 100) for p, (name, mb) in known.items()}
    (row,) = memory(peer(steady), [peer(other), peer(broken, real=True)], work, doubled)
    assert row.ours > 100
    assert row.theirs > 100


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


@pytest.fixture
def tiny(monkeypatch):
    """The suite with the cheapest programs at tiny sizes, on an idle machine."""
    monkeypatch.setattr(suite, "DEFAULT", TINY)
    monkeypatch.setattr("benchmarks.ppo.table.Work", lambda: TINY)
    monkeypatch.setattr(suite, "QUICK_GRID", (replace(TINY, T=12), replace(TINY, B=8)))
    for name in ("REGIONS", "QUICK"):
        monkeypatch.setattr(suite, name, (peer(other),))
    monkeypatch.setattr(suite, "SCHEMES", ())
    monkeypatch.setattr(suite, "SHARDED", peer(other))
    monkeypatch.setattr(suite, "in_worker", lambda *_, **__: dict(products=1.0, tanh=1.0, copy=1.0))
    monkeypatch.setattr(one_case, "STRETCH", 0.0)
    monkeypatch.setattr(starts, "in_worker", lambda *_, **__: 1.0)
    monkeypatch.setattr(machine, "busy", lambda: 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_the_suite_gives_rows():
    """From front to back."""
    rows = suite.suite(quick=True, ours=steady)
    assert [row.case for row in rows if row.metric == "times_per_doubling"] == [
        "T in 6, 12 1T", "B in 4, 8 1T",
    ]  # fmt: skip
    metrics = [row.metric for row in rows]
    assert {m: metrics.count(m) for m in metrics} == {
        "iteration_ms": 1 + 2 + 2 + 1, "times_per_doubling": 2, "peak_rss_mb": 1, "start_s": 2,
        "compile_s": 1,
    }  # fmt: skip
    assert all(isinstance(row, Row) and row.ratio > 0 for row in rows)
    assert sum("2T wall" in row.case for row in rows) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_parts_are_taken_alone():
    assert {row.metric for row in suite.suite(quick=True, only="memory", ours=steady)} == {
        "peak_rss_mb"
    }
    grid = suite.suite(quick=True, only="grid", ours=steady)
    assert [row.case.split(" w")[0] for row in grid[:3]] == ["T=6 B=4", "T=12 B=4", "T=6 B=8"]


def test_starts_are_of_whole_processes(monkeypatch):
    """Theirs, too; the second one of ours finds the folder that the first one was given."""
    monkeypatch.setattr(starts, "in_worker", lambda *_, **__: 1.0)
    monkeypatch.setattr(machine, "busy", lambda: 0.0)
    rows = starts.starts(peer(steady), [peer(other)], TINY, quick=True)
    assert [(row.metric, row.peer) for row in rows] == [
        ("start_s", "budget"), ("start_s", "budget"), ("compile_s", "budget"), ("start_s", "other"),
    ]  # fmt: skip
    assert all(row.ours > 0.01 for row in rows)
    with pytest.raises(Ended, match="does not start"):
        starts.start(peer(broken), TINY)


def test_every_contestant_can_be_made():
    """Each name of the table leads to a function."""
    named = {*suite.REGIONS, *suite.SCHEMES, *suite.ON_TWO, *suite.ON_GRID, *suite.QUICK}
    assert len(named) == 12
    assert all(callable(find(contestant.make)) for contestant in named)


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
    assert main(["core", "--peers", "somewhere"]) == 2
    assert "--peers is for the bench ppo, not core" in capsys.readouterr().err
    assert main(["ppo", "--only", "1T,3T"]) == 2
    assert "the bench ppo has no part 3T" in capsys.readouterr().err
    assert main(["ppo", "--peers", __file__]) == 2
    assert f"{__file__} is no folder for peers" in capsys.readouterr().err


def test_a_gate_stops_a_framework_after_every_iteration():
    done: list[int] = []

    def train() -> None:
        for k in range(5):
            gate.wait()
            done.append(k)

    gate = Gate(train)
    gate.run(1)
    assert done == [0]
    gate.run(3)
    assert done == [0, 1, 2, 3]
    with pytest.raises(RecurraError, match="has ended by itself"):
        gate.run(1)


SMALL = Work(B=8, T=10, width=8, features=6)


@pytest.mark.fuzz
@pytest.mark.parametrize("threads", [1, 2])
def test_every_row_of_the_table(threads: int, monkeypatch):
    """Each contestant in its process, its answer equal to ours, at tiny sizes."""
    monkeypatch.setattr(machine, "busy", lambda: 0.0)
    among = suite.ON_TWO if threads == 2 else (*suite.REGIONS, *suite.SCHEMES)
    case = Case(str(SMALL), threads=threads, clock="wall" if threads == 2 else "cpu")
    found = contest(Peer("benchmarks.ppo.recurra_program:contestant"), among, case, SMALL, 2)
    assert len(found.rows) == len(found.peaks) - 1 == len(among)
    assert {row.checked for row in found.rows} == {"exact"}
