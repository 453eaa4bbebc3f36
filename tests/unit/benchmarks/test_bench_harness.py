"""The harness: what it refuses, what it reports, and that its numbers repeat."""

import json
import os

import numpy as np
import pytest

from benchmarks import machine, pairs
from benchmarks.harness import Case, Contestant, Disagreement, Row, check, compare, report
from benchmarks.pairs import interleaved, ratio
from benchmarks.worker import find, in_worker, name_of
from recurra.errors import RecurraError


class Clock:
    """Time that passes only when a program says so."""

    def __init__(self):
        self.now, self.order = 0.0, []

    def program(self, name, ms, answer=None, same_draws=True):
        def run(k):
            self.now += k * ms / 1e3
            self.order.append(name)

        return Contestant(name, run, lambda: answer or {}, same_draws)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setitem(pairs.CLOCKS, "cpu", lambda: clock.now)
    return clock


CASE = Case("T=250 B=512")
LENGTH = np.array([22.0, 35.0])


def test_a_row_says_how_much_faster_we_are(clock):
    ours = clock.program("ours", 2.0, {"length": LENGTH})
    peers = [clock.program(f"peer {ms}", ms, {"length": LENGTH}) for ms in (6.0, 1.0)]
    slower, faster = compare(CASE, ours, peers, pairs=5)
    assert (slower.peer, faster.peer) == ("peer 6.0", "peer 1.0")
    assert (slower.ours, slower.theirs) == pytest.approx((2.0, 6.0))
    assert slower.ratio == pytest.approx(3.0)
    assert slower.ci95 == pytest.approx((3.0, 3.0))
    assert faster.ratio == pytest.approx(0.5)
    assert {row.checked for row in (slower, faster)} == {"exact"}


def test_programs_take_turns_and_the_order_turns_round(clock):
    runs = [clock.program(name, 1.0).run for name in "abc"]
    assert interleaved(runs, iterations=4, rounds=2) == pytest.approx(np.ones((2, 3)))
    assert "".join(clock.order) == "abc" + "abc" + "cba"


def test_no_time_is_taken_when_answers_disagree(clock, capsys):
    ours = clock.program("ours", 1.0, {"length": LENGTH})
    good = clock.program("good", 2.0, {"length": LENGTH})
    wrong = clock.program("wrong", 3.0, {"length": LENGTH + np.eye(2)[1]})
    with pytest.raises(Disagreement) as error:
        compare(CASE, ours, [good, wrong])
    assert str(error.value) == (
        "ours and wrong do not agree on length: no time is taken\n  relative difference 2.8e-02"
    )
    assert clock.order == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ({"length": LENGTH}, {"length": LENGTH * (1 + 1e-5)}, "exact"),
        ({"length": LENGTH}, {"length": LENGTH * (1 + 1e-2)}, Disagreement),
        ({"length": LENGTH}, {"length": LENGTH[:1]}, Disagreement),
        ({"length": LENGTH}, {"length": LENGTH * np.nan}, Disagreement),
        ({"length": LENGTH * np.nan}, {"length": LENGTH * np.nan}, Disagreement),
        ({"length": LENGTH}, {}, Disagreement),
        ({"zero": np.zeros(3)}, {"zero": np.zeros(3)}, "exact"),
        ({"zero": np.full(3, 1e-9)}, {"zero": np.zeros(3)}, Disagreement),
        ({"steps": np.array(10**6)}, {"steps": np.array(10**6 + 1)}, Disagreement),
        ({}, {}, "none"),
    ],
)
def test_answers_with_the_same_draws(x, y, expected):
    us, them = Contestant("us", abs, dict), Contestant("them", abs, dict)
    if expected is Disagreement:
        with pytest.raises(Disagreement):
            check((us, x), (them, y))
    else:
        assert check((us, x), (them, y)) == expected


def test_other_draws_are_compared_by_their_work():
    us, them = Contestant("us", abs, dict), Contestant("them", abs, dict, same_draws=False)
    x = {"length": LENGTH, "steps": np.array(500)}
    assert check((us, x), (them, {"length": LENGTH + 3, "steps": np.array(500)})) == "work"
    assert check((us, {"length": LENGTH}), (them, {"length": LENGTH + 3})) == "none"
    with pytest.raises(Disagreement):
        check((us, x), (them, {"length": LENGTH, "steps": np.array(499)}))


def test_the_ratio_is_of_pairs_and_its_interval_repeats():
    rng = np.random.default_rng(3)
    disturbance = rng.lognormal(0, 1, 20)  # hits both programs of a pair
    ours, theirs = disturbance, disturbance * rng.normal(3, 0.1, 20)
    middle, (low, high) = ratio(ours, theirs)
    assert 2.8 < low <= middle <= high < 3.2
    assert ratio(ours, theirs) == (middle, (low, high))
    assert ratio(ours, theirs, seed=1)[0] == middle


def test_the_report_has_the_shape_of_the_command():
    row = Row(
        "T=250 B=512 1T", "iteration_ms", 165.0, "peer", 537.0, 3.25, (3.1, 3.4), 60.0, "exact"
    )
    data = report("core", [row], load=0.1)
    assert data["idle"]
    assert not report("core", [], load=1.5)["idle"]
    assert list(data) == ["bench", "commit", "machine", "load", "idle", "rows"]
    assert {"cpu", "cores", "python", "jax"} <= data["machine"].keys()
    assert json.loads(json.dumps(data))["rows"] == [
        {
            "case": "T=250 B=512 1T",
            "metric": "iteration_ms",
            "ours": 165.0,
            "peer": "peer",
            "theirs": 537.0,
            "ratio": 3.25,
            "ci95": [3.1, 3.4],
            "limit": 60.0,
            "checked": "exact",
        }
    ]


def test_a_case_names_its_cores_and_a_wall_clock():
    assert str(CASE) == "T=250 B=512 1T"
    assert str(Case("B=64", threads=2, clock="wall")) == "B=64 2T wall"


def test_a_worker_has_its_cores_and_we_get_ours_back():
    before = os.sched_getaffinity(0)
    assert in_worker(machine.cores, {}, threads=1) == 1
    assert os.sched_getaffinity(0) == before
    with pytest.raises(RecurraError, match="needs 4096 cores"):
        in_worker(machine.cores, {}, threads=4096)


def test_a_worker_finds_the_benchmarks_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert in_worker(machine.cores, {}, threads=1) == 1


def test_a_worker_that_fails_says_why(capfd):
    with pytest.raises(RecurraError, match="ended with code 1"):
        in_worker(find, {"name": "recurra.nowhere:nothing"}, threads=1)
    assert "No module named 'recurra.nowhere'" in capfd.readouterr().err


def test_a_worker_calls_functions_by_name():
    assert find(name_of(ratio)) is ratio
    with pytest.raises(RecurraError, match="cannot be called from another process"):
        name_of(lambda: 0)
