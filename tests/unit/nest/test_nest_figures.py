"""LoopTune's figures: measured in the small, and drawn of made-up numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import machine
from benchmarks.looptune import command, learners, libraries, searches
from benchmarks.looptune.__main__ import main
from benchmarks.looptune.pictures import density, dots, violins
from benchmarks.looptune.sizes import QUICK, SEARCHES, Sizes, problems
from benchmarks.nest import generators, policy
from recurra.nest import catalogue
from recurra.nest.actions import PAPER, Actions
from recurra.nest.agents.policy import GreedyPolicy, initial
from recurra.nest.loops import Nest, untiled
from recurra.nest.measured_table import Table, tabulate
from recurra.nest.target import runnable

FEW = Actions((4, 8), max_loops=10, steps=4)
TINY = Sizes(5, 4, 1, 600, 1200, 1, 0.02, 1, 0.02, (1, 2), 2)


def stub(nest: Nest) -> float:
    return 10.0 + len(nest.order) + 5 * nest.order.startswith("k")


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    sizes = [(64, 64, 64), (128, 64, 96), (96, 160, 64), (64, 96, 96), (80, 64, 64)]
    return [tabulate(catalogue.matmul(*s), FEW, stub, 100.0) for s in sizes]


@pytest.mark.slow
def test_every_learner_has_as_many_actions(
    tables: list[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = learners.tried
    monkeypatch.setattr(learners, "tried", lambda *given: replace(plain(*given), hidden=(16,)))
    worlds = learners.parted(tables)
    for name in learners.LEARNERS:
        one = learners.swept(name, worlds, TINY)
        assert len(one["trials"]) == TINY.trials
        assert abs(one["points"][-1]["steps"] - TINY.run) <= 1024  # a round of PPO
        assert 0 < one["points"][-1]["of_best"] <= 1
    assert 0 < worlds.bounds()["of_best_untiled"] < 1
    assert worlds.bounds()["reward_oracle"] > 0


@pytest.mark.parametrize("name", learners.LEARNERS)
def test_a_sweep_is_drawn_again(name: str) -> None:
    first = learners.tried(name, 0, 100_000, 8)
    assert first.learning_rate == type(first)().learning_rate
    second = learners.tried(name, 1, 100_000, 8)
    assert second == learners.tried(name, 1, 100_000, 8)
    assert second != learners.tried(name, 2, 100_000, 8)


def test_problems_are_not_those_learned_from() -> None:
    taken = searches.learned_from()
    some = problems(200, taken)
    assert len(set(some)) == 200
    assert not {searches.called(s) for s in some} & taken


def test_searches_at_equal_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    net = GreedyPolicy(initial(201, len(FEW.names), (4,), 0), FEW)
    monkeypatch.setattr(searches, "known", lambda on: net)
    found = searches.searched((16, 16, 32), 0.02)
    assert set(found["rows"]) == {"untiled", "policy", *SEARCHES}
    assert all(row["gflops"] > 0 for row in found["rows"].values())
    deep = searches.deepened((16, 16, 32), 0.02, (1, 2, 9))
    assert [k for k, _, _ in deep["rows"]["greedy1"]] == [1, 2, 9]
    assert [k for k, _, _ in deep["rows"]["policy"]] == [1, 2]


def test_libraries() -> None:
    found = libraries.beside((16, 16, 32), 0.05, 2)
    assert found["size"] == "16x16x32"
    assert {"tuned", "numpy"} <= set(found["ms"])


def test_generators_are_checked_and_timed() -> None:
    assert len(generators.TABLE) == 12
    rows = generators.generators(["MM-64"], 0.05)
    assert [row["metric"] for row in rows] == ["compile_ms", "gflops"] * len(runnable())
    assert all(row["checked"] == "exact" for row in rows)


def test_policy_and_search_beside_searches() -> None:
    p, on = catalogue.matmul(16, 16, 32), runnable()[0]
    net = GreedyPolicy(initial(201, len(FEW.names), (4,), 0), FEW)
    for actions in (PAPER, FEW):
        found = policy._searched(net, p, on, 0.02, actions, untiled(p))
        assert set(found) == {"policy", "reference", *SEARCHES}
    row = policy._against(0.01, "random", [(9.0, 10.0), (30.0, 15.0), (12.0, 10.0)], on, "")
    assert (row.ratio, row.ci95, row.ours, row.theirs) == (1.2, (0.9, 2.0), 12.0, 10.0)


# Pictures


def test_densities() -> None:
    found = density([1.0, 2.0, 2.0, 3.0])
    values, often = np.array(found).T
    assert often.max() == 1
    np.testing.assert_allclose(often, often[::-1], atol=1e-9)
    assert values[0] < 1 < 3 < values[-1]
    assert all(np.isfinite(often) for _, often in density([2.0]))


def shown(panel: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<g>{panel}</g>")


def test_dots_are_where_the_values_are() -> None:
    panel, _ = dots("t", "ms", ["a", "b"], {"x": [1.0, 100.0], "y": [10.0, None]}, powers=True)
    circles = [float(c.attrib["cy"]) for c in shown(panel).iter("circle")]
    assert len(circles) == 3
    assert circles[2] == pytest.approx((circles[0] + circles[1]) / 2, abs=0.1)
    panel, _ = dots("t", "GFLOPS", ["a"], {"x": [50.0], "y": [100.0]})
    high, low = (float(c.attrib["cy"]) for c in shown(panel).iter("circle"))
    assert high > low


def test_violins_show_every_value() -> None:
    panel, width = violins("t", "times", {"x": [1.0, 2.0, 3.0], "y": [2.0]})
    assert len(list(shown(panel).iter("circle"))) == 4
    assert width == 128
    assert "2.00" in "".join(shown(panel).itertext())


def numbers() -> dict[str, Any]:
    """All parts, made up."""
    points = [dict(steps=k, reward=None if k == 0 else k / 10 - 0.1, of_best=0.5) for k in range(3)]
    names = ("untiled", *SEARCHES, "policy")
    rows = {name: dict(gflops=10.0 + k, of_peak=0.5, seconds=0.1) for k, name in enumerate(names)}
    found: dict[str, Any] = {
        "learners": {
            "learners": {name: dict(points=points) for name in learners.LEARNERS},
            "of_best_untiled": 0.4,
        },
        "searches": [dict(size="64x64x64", rows=rows), dict(size="64x64x80", rows=rows)],
        "depths": [dict(size="64x64x64", rows={n: [(1, 5.0, 0.1), (2, 6.0, 0.2)] for n in names})],
        "libraries": [
            dict(size="64x64x64", ms={"tuned": 0.1, "numpy": 0.2, "TVM": 0.3}),
            dict(size="64x64x80", ms={"tuned": 0.1, "numpy": 0.2}),
        ],
    }
    return {name: kept(part) for name, part in found.items()}


def kept(found: Any) -> dict[str, Any]:
    return json.loads(
        json.dumps(dict(sizes=asdict(QUICK), machine=machine.describe(), load=0.5, found=found))
    )


def test_the_picture_is_one_file() -> None:
    text = command.picture(numbers())
    root = ElementTree.fromstring(text)
    words = " ".join(root.itertext())
    for figure in ("7: ", "8: ", "9: ", "10: ", "11: "):
        assert figure in words
    for name in (*learners.LEARNERS, *SEARCHES, "policy", "numpy", "TVM"):
        assert name in words
    assert "http://www.w3.org/2000/svg" in text
    assert "href" not in text


def test_the_command_draws_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, part in numbers().items():
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    given = ["--quick", "--folder", str(tmp_path), "--out", str(tmp_path / "o")]
    assert main(given) == 0
    assert "as measured before" in capsys.readouterr().err
    ElementTree.parse(tmp_path / "o" / "nest.svg")
    assert set(json.loads((tmp_path / "o" / "nest.json").read_text())) == set(command.PARTS)
    (tmp_path / "depths.json").write_text("{}")
    assert main(given) == 2
    assert "is no part of the figures\n  it has no found, load, machine, sizes" in (
        capsys.readouterr().err
    )
    assert main(["--out", "/proc/none"]) == 2
    assert capsys.readouterr().err.startswith("/proc/none cannot be made")
