"""Priorities learned over programs: who is held out has no part; what is shipped is used."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from random_mappings import random_problem
from recurra import cli
from recurra.mapping import engine_choice, priorities
from recurra.mapping.model_library import LIBRARY, instance
from recurra.mapping.priorities import Evolved, Priorities, choose_priorities
from recurra.mapping.priority_keys import (
    FEATURES,
    UNITS,
    Summary,
    features,
    most_valuable,
    shared_features,
    shared_weights,
)
from recurra.mapping.search import Search
from recurra.mapping.solvers import solver_of
from recurra.mapping.solvers.evolved_priorities import (
    MATTERS,
    SHIPPED,
    bundled_weights,
    place_by_weights,
)
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import validate
from recurra.storage.mapping_problem import Buffer, Instruction, Problem

WIDTH = len(UNITS) * FEATURES
PYTHON = engine_choice.engine("python")


def made(shares: list[list[float]], source: list[int], names: list[str]) -> Evolved:
    weights = np.arange(len(source) * WIDTH, dtype=float).reshape(-1, WIDTH)
    return Evolved(names, np.array(source), weights, np.array(shares), [1] * len(names))


def test_what_adds_most_to_other_families_comes_first() -> None:
    names = ["a_infer", "a_train", "b", "c"]
    shares = [
        # of -1   a_infer a_train b    c
        [0.50, 1.00, 0.99, 0.60, 0.70],
        [0.50, 0.99, 1.00, 0.60, 0.70],
        [0.50, 0.20, 0.10, 1.00, 0.30],
        [0.50, 0.90, 0.10, 0.20, 1.00],
    ]
    found = made(shares, [-1, 0, 1, 2, 3], names)
    # a vector counts nothing for its own family: c's for both a, then what b and c lack
    assert choose_priorities(found, 3) == [0, 4, 1]
    assert sorted(choose_priorities(found, 99)) == [0, 1, 2, 3, 4]
    # without a: its vectors are not there, its rewards do not count
    assert sorted(choose_priorities(found, 99, without=0)) == [0, 3, 4]
    other = np.array(shares)
    other[:2] = np.random.default_rng(0).random((2, 5))
    assert choose_priorities(
        made(other.tolist(), [-1, 0, 1, 2, 3], names), 9, without=1
    ) == choose_priorities(found, 9, without=0)


def test_weights_in_other_units_order_their_own_program_alike() -> None:
    random = np.random.default_rng(0)
    for k in range(20):
        f = flat(random_problem(Random(k), 20))
        weights = random.standard_normal(FEATURES)
        shared = shared_weights(f, weights)
        assert shared.shape == (len(UNITS), WIDTH)
        for row in shared:
            assert np.allclose(shared_features(f) @ row, features(f) @ weights)


def test_tensors_that_gain_nothing_change_no_unit() -> None:
    def apart(idle: int) -> tuple[Any, Any]:
        """How far two tensors that gain are from each other."""
        sizes = [1, 2, 4, 8] + [3] * idle
        buffers = tuple(
            Buffer(
                size=size, is_output=False, target_time=min(k, 3), tensor_id=k, alias_id=None,
                live_range=(-1, 3), demand=1, benefit=10 * size if k < 4 else 0,
            )
            for k, size in enumerate(sizes)
        )  # fmt: skip
        f = flat(Problem("idle", 16, (Instruction("x", 2),) * 4, buffers))
        return tuple(x[3] - x[0] for x in (features(f), shared_features(f)))

    few, many = apart(0), apart(40)
    size = np.arange(0, WIDTH, FEATURES)  # the first feature, in each unit
    assert many[0][0] > 1.5 * few[0][0]
    assert np.allclose(many[1][size], few[1][size], rtol=1e-6)


def test_known_weights_are_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, known = instance("ppo_step"), bundled_weights()[:5]
    search = Search(problem, 60.0, 0, None, PYTHON)
    monkeypatch.setattr("recurra.mapping.solvers.evolved_priorities.SECONDS", 0.0)
    assert place_by_weights(search, known) == 0  # the first of them, at once of all tensors
    first = search.reward
    assert first > 0
    again = Search(problem, 60.0, 0, None, PYTHON)
    monkeypatch.setattr("recurra.mapping.solvers.evolved_priorities.SECONDS", 0.5)
    assert place_by_weights(again, known) > len(known)
    assert again.reward >= first
    assert validate(problem, again.solution) == again.reward


def test_what_happened_before_is_not_counted() -> None:
    search = Search(instance("ppo_step"), 60.0, 0, None, PYTHON)
    search.worker_seconds += 1.0
    assert place_by_weights(search, bundled_weights()[:5]) > 0


def test_what_matters_is_the_fewest_tensors_that_gain_enough() -> None:
    for name in ("ppo_step", "alexnet_train"):
        f = flat(instance(name))
        summary = Summary(f)
        gained = summary.benefit + summary.gain
        some = most_valuable(f, 0.9)
        assert list(some) == sorted(set(some.tolist()))
        assert gained[some].sum() >= 0.9 * gained.sum()
        most = np.sort(gained)[::-1]
        assert most[: len(some) - 1].sum() < 0.9 * gained.sum()
        assert gained[some].sum() == most[: len(some)].sum()
        assert len(most_valuable(f, 1.0)) >= np.count_nonzero(gained)
    idle = flat(random_problem(Random(0), 20))
    assert 0 < len(most_valuable(idle, 0.5)) <= len(idle.grouped)


def test_tensors_that_do_not_matter_are_placed_in_the_end() -> None:
    problem, known = instance("ppo_step"), bundled_weights()[:3]
    search = Search(problem, 60.0, 0, None, PYTHON)
    place_by_weights(search, known)
    f = search.flat
    some = set(most_valuable(f, MATTERS).tolist())
    placed = {int(f.storage[i]) for i, p in enumerate(search.solution.placements) if p is not None}
    assert placed - some
    assert len(some) < len(f.grouped)


def test_what_is_shipped_was_learned_from_the_library() -> None:
    kept: Any = json.loads(SHIPPED.read_text())
    assert kept["learned_from"] == list(LIBRARY)
    assert bundled_weights().shape == (priorities.CHOSEN, WIDTH)
    assert kept["made_by"].startswith("recurra map priorities --seconds")
    assert [row["name"] for row in kept["held_out"]] == list(LIBRARY)
    problem = instance("wavenet")
    answer = solver_of("learned")(problem, 1, 0, None, PYTHON)
    assert validate(problem, answer) > 0.9 * problem.total


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made.json"
    words = ["map", "priorities", "--names", "ppo_step", "wavenet", "--engine", "python"]
    assert cli.main([*words, "--seconds", "0.05", "--seeds", "1", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "of instance-wise search, held out" in told
    assert told.count("\n") == 3
    kept: Any = json.loads(out.read_text())
    assert kept["learned_from"] == ["ppo_step", "wavenet"]
    assert np.array(kept["weights"]).shape == (3 * len(UNITS), WIDTH)  # the first of all, too
    assert all(0 < x <= 1.5 for x in kept["curve"].values())


def test_wrong_wishes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["map", "priorities", "--names", "ppo_step", "magic"]) == 2
    assert "the library has no magic" in capsys.readouterr().err
    assert cli.main(["map", "priorities", "--names", "resnet50_infer", "resnet50_train"]) == 2
    assert "takes two families of them and a seed" in capsys.readouterr().err
    with pytest.raises(priorities.RecurraError, match="0 seeds"):
        Priorities(seeds=0)()
