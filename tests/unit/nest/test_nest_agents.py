"""Agents: on a small table that a stub made, learning beats chance, and can be repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from random_nests import answers
from recurra import cli
from recurra.errors import RecurraError
from recurra.nest import catalogue
from recurra.nest.actions import Actions
from recurra.nest.agents import fitted, network
from recurra.nest.agents.dqn import DqnSettings, train
from recurra.nest.agents.policy import (
    GreedyPolicy,
    bundled_policy,
    features,
    initial,
    load,
    proposed,
)
from recurra.nest.agents.vector_env import VectorEnv, epsilon_greedy, sample_actions
from recurra.nest.codegen import generate
from recurra.nest.einsum import from_sizes
from recurra.nest.llvm import LlvmKernel
from recurra.nest.loops import Nest, scheduled
from recurra.nest.measured_table import Table, tabulate
from recurra.nest.observation import WIDTH
from recurra.nest.target import AVX2, AVX512, VectorTarget, runnable
from recurra.support import safetensors_file

FEW = Actions((4, 8), max_loops=10, steps=4)
TINY = DqnSettings(rounds=20, batch=16, hidden=(8,), learn_from=8)
SHORT = DqnSettings(rounds=400, batch=16, hidden=(64, 64), learn_from=64, target_every=50)


def tile(nest: Nest) -> float:
    """Two splits under the reduction are worth most; the way there first costs something."""
    order = nest.order.split(" | ")[0].split()
    inside = order[order.index("k") + 1 :] if "k" in order else []
    return 10.0 + 20 * len(inside) - 6 * sum("/" in word for word in order[:2]) + len(order)


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    sizes = [(64, 64, 64), (128, 64, 96), (96, 160, 64)]
    return [tabulate(catalogue.matmul(*s), FEW, tile, 100.0) for s in sizes]


def at_random(tables: list[Table], seed: int = 0) -> float:
    """The mean share of the best at the end of random episodes."""
    random, world = np.random.default_rng(seed), VectorEnv.of(tables)
    starts = np.repeat(world.first, 70)
    anything = epsilon_greedy(initial(201, len(FEW.names), (4,), 0), 1.0)
    ends = world.rollout(starts, anything, random).last
    return float((world.shares[ends] / np.repeat(world.best, 70)).mean())


def shares_of_best(policy: GreedyPolicy, tables: list[Table]) -> list[float]:
    """Walked nest by nest: what `VectorEnv.greedy_shares` says in arrays."""
    return [t.evaluate(policy.path(t.problem)[-1]) / t.best for t in tables]


@pytest.fixture(scope="module")
def policy(tables: list[Table]) -> GreedyPolicy:
    return train(tables, SHORT)


def test_learning_beats_chance(policy: GreedyPolicy, tables: list[Table]) -> None:
    assert np.mean(shares_of_best(policy, tables)) > at_random(tables) + 0.1
    assert min(shares_of_best(policy, tables)) > 0.9


def test_training_can_be_repeated(tables: list[Table]) -> None:
    first, again = train(tables, TINY), train(tables, TINY)
    for name, w in first.weights.items():
        np.testing.assert_array_equal(w, again.weights[name])


def test_progress_is_told(tables: list[Table]) -> None:
    told: list[int] = []
    train(tables, TINY, tell=lambda point: told.append(point.rounds), every=8)
    assert told == [8, 16, 20]


def test_acting_and_learning_use_one_network() -> None:
    weights = initial(201, 7, (16, 8), 3)
    seen = np.random.default_rng(0).random((5, 201), dtype=np.float32)
    np.testing.assert_allclose(
        GreedyPolicy(weights, FEW).values(seen), network.values(weights, seen), rtol=1e-4, atol=1e-6
    )


def test_values_are_what_can_be_reached(tables: list[Table]) -> None:
    """Against brute force: all sequences of so many actions."""
    table = tables[0]
    found = fitted.values(table)
    assert found.shape == (FEW.steps + 1, len(table.orders))
    for state in (0, 5, 40):
        for left in (0, 1, 2):
            ends = [state]
            for _ in range(left):
                ends = [int(x) for s in ends for x in table.after[s]]
            best = max(float(table.gflops[e]) for e in ends) / table.best
            assert found[left, state] == pytest.approx(best)
    assert found[-1, 0] == 1.0


def test_fitted_values_beat_chance_soon(tables: list[Table]) -> None:
    policy = fitted.train(tables, fitted.FittedSettings(rounds=300, batch=128, hidden=(64, 64)))
    assert np.mean(shares_of_best(policy, tables)) > at_random(tables) + 0.1
    assert min(shares_of_best(policy, tables)) > 0.9


def test_fitting_can_be_repeated(tables: list[Table]) -> None:
    few = fitted.FittedSettings(rounds=8, batch=16, hidden=(8,), walks=4)
    first, again = fitted.train(tables, few), fitted.train(tables, few)
    for name, w in first.weights.items():
        np.testing.assert_array_equal(w, again.weights[name])


def test_transitions_are_of_n_steps(tables: list[Table]) -> None:
    """Rewards of an episode add up; the last transitions are shorter, and end it."""
    world, random = VectorEnv.of(tables), np.random.default_rng(0)
    choose = epsilon_greedy(initial(201, len(FEW.names), (4,), 0), 1.0)
    walked = world.rollout(world.draw_starts(5, random), choose, random)
    t = walked.transitions(3)
    assert t["left"].tolist() == [4] * 5 + [3] * 5 + [2] * 5 + [1] * 5
    assert t["after_left"].tolist() == [1] * 5 + [0] * 15
    shares = world.shares
    np.testing.assert_allclose(
        t["reward"], shares[t["after"]] - shares[t["state"]], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(t["after"][:5], walked.states[3])
    np.testing.assert_array_equal(t["after"][5:10], walked.last)


def test_a_world_says_what_paths_do(policy: GreedyPolicy, tables: list[Table]) -> None:
    found = VectorEnv.of(tables).greedy_shares(policy.weights)
    np.testing.assert_allclose(found, shares_of_best(policy, tables), rtol=1e-5)


def test_draws_are_as_likely_as_the_network_says(tables: list[Table]) -> None:
    world, random = VectorEnv.of(tables), np.random.default_rng(3)
    weights = initial(201, len(FEW.names), (8,), 1)
    weights["Wa"] *= 100
    starts = np.repeat(world.first[:1], 4000)
    seen, legal = world.observe(starts, 4), world.legal[starts]
    actions, logs = sample_actions(weights)(seen, legal, random)
    assert legal[0, actions].all()
    _, want = network.actor_critic(weights, seen[:1], legal[:1])
    shares = np.bincount(actions, minlength=len(FEW.names)) / 4000
    np.testing.assert_allclose(shares, np.exp(np.asarray(want[0])), atol=0.03)
    np.testing.assert_allclose(logs, np.asarray(want[0])[actions], rtol=1e-4, atol=1e-5)


def test_only_legal_actions_are_taken(policy: GreedyPolicy, tables: list[Table]) -> None:
    for table in tables:
        path = policy.path(table.problem)
        assert len(path) == FEW.steps + 1
        for before, after in pairwise(path):
            assert after in FEW.successors(before).values()


def test_features_are_small_numbers() -> None:
    x = np.zeros((1, 10, WIDTH), np.float32)
    x[0, 0, :5] = 1, 255, 3, 1, 2
    assert features(x)[0, :5].tolist() == [1, 1, 0.25, 1, 0.5]


def test_a_policy_is_saved_and_loaded(
    policy: GreedyPolicy, tables: list[Table], tmp_path: Path
) -> None:
    policy.save(tmp_path / "p.safetensors")
    again = load(tmp_path / "p.safetensors")
    assert again.actions == policy.actions
    assert again.about == policy.about
    assert again.path(tables[0].problem) == policy.path(tables[0].problem)
    (tmp_path / "none").write_text("none")
    with pytest.raises(RecurraError, match="is no policy"):
        load(tmp_path / "none")
    GreedyPolicy(policy.weights, Actions()).save(tmp_path / "other")
    with pytest.raises(RecurraError, match="does not fit its actions"):
        load(tmp_path / "other")


def damaged(path: Path, r: Random) -> bytes:
    """The file with a few bytes changed, gone or more; at its head, where it says what it is."""
    data = bytearray(path.read_bytes())
    for _ in range(r.randint(1, 3)):
        at = r.randrange(min(len(data), r.choice([1200, 10**9])))
        data[at : at + r.randint(0, 4)] = r.randbytes(r.randint(0, 4))
    return bytes(data)


def test_a_damaged_policy_is_refused_or_is_one(tmp_path: Path) -> None:
    """Whatever is in the file, what comes is a policy or an error in words."""
    on, r = runnable()[0], Random(0)
    whole, file = bundled_policy(on), tmp_path / "p.safetensors"
    assert whole is not None
    refused = taken = 0
    for _ in range(200):
        file.write_bytes(damaged(whole, r))
        try:
            assert load(file).path(catalogue.matmul(16, 16, 16))
        except RecurraError as error:
            refused += error.what in (f"{file} is no policy", f"{file} does not fit its actions")
        else:
            taken += 1
    assert refused + taken == 200
    assert refused > 50


@pytest.mark.parametrize(
    "change",
    [
        {"actions": "["},
        {"actions": "[]"},
        {"actions": "{}"},
        {"actions": '{"factors": 3}'},
        {"actions": '{"factors": ["x"], "max_loops": 10}'},
        {"actions": '{"factors": [0, 0, 0], "max_loops": 10, "steps": 8}'},
        {"actions": '{"factors": [], "color": "red"}'},
        {"actions": '{"factors": [], "max_loops": "many"}'},
        {"about": "{"},
        {"Wa": np.zeros(3, np.float32)},
        {"W0": np.zeros((), np.float32)},
        {"b0": np.full(64, np.nan, np.float32)},
        {"Wv": np.zeros((2, 2), np.float32)},
    ],
    ids=str,
)
def test_an_odd_policy_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "p.safetensors"
    whole = bundled_policy(runnable()[0])
    assert whole is not None
    weights, words = safetensors_file.read(whole)
    safetensors_file.write(
        file,
        {k: change.get(k, x) for k, x in weights.items()},
        {k: change.get(k, x) for k, x in words.items()},
    )
    with pytest.raises(RecurraError, match=r"is no policy|does not fit its actions"):
        load(file)
    assert cli.main(["tune", "mk,kn->mn", "--sizes", "8,8,8", "--policy", str(file)]) == 2


@pytest.mark.parametrize("on", [AVX512, AVX2], ids=str)
def test_the_shipped_policy_says_how_it_was_made(on: VectorTarget) -> None:
    path = bundled_policy(on)
    assert path is not None
    policy = load(path)
    about = policy.about
    assert about["command"].startswith("recurra tune train --tables ")
    assert len({*about["learnt"], *about["choosing"], *about["telling"]}) == sum(
        len(about[k]) for k in ("learnt", "choosing", "telling")
    )
    assert about["of_best"] > about["of_best_untiled"]
    assert path.stat().st_size < 300_000


@pytest.mark.parametrize("on", [AVX512, AVX2], ids=str)
@pytest.mark.parametrize("sizes", [(128, 128, 128), (100, 37, 250), (1, 7, 3), (64, 64, 2000)])
def test_a_nest_is_proposed(sizes: tuple[int, int, int], on: VectorTarget) -> None:
    """Whatever the size: a legal nest, with right answers."""
    p = catalogue.matmul(*sizes)
    nest = proposed(p, on)
    assert nest == proposed(p, on)
    assert scheduled(p, nest.order).steps == nest.steps
    if p.flops < 10**6:
        got, want = answers(Random(0), nest, LlvmKernel(generate(nest, on)).call)
        np.testing.assert_array_equal(got, want)


def test_no_policy() -> None:
    with pytest.raises(RecurraError, match="no policy for neon comes with the package"):
        proposed(catalogue.matmul(8, 8, 8), replace(AVX2, name="neon"))
    many = from_sizes("abcdef,abcdef->abcdef", (2,) * 6)
    with pytest.raises(RecurraError, match=r"too many loops for the policy\n  12 .*\n  hint: "):
        proposed(many, AVX512)


FEW_WORDS = (
    "training needs two tables, an action, a round and an actor at least, and a seed from 0 on"
)
SMALL = ["--tables", "2", "--depth", "2", "--rounds", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["fitted", "ppo"])
def test_the_command(learner: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "nest"
    options = [*SMALL, "--learner", learner, "--json"]
    assert cli.main(["tune", "train", "--folder", str(folder), *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["tables"], report["held_out"], report["rounds"]) == (1, 1, 4)
    assert len((folder / "curve.jsonl").read_text().splitlines()) == len(report["curve"]) == 4
    policy = load(folder / "policy.safetensors")
    assert policy.actions.steps == 2
    assert f"--learner {learner} --rounds 4 --seed 0" in policy.about["command"]
    assert not set(policy.about["learnt"]) & {*policy.about["choosing"], *policy.about["telling"]}
    assert len(list(folder.glob("*x*.npz"))) == 2
    arguments = ["--sizes", "16,16,32", "--seconds", "0.1", "--policy", report["policy"], "--json"]
    assert cli.main(["tune", "mk,kn->mn", *arguments]) == 0
    assert "policy" in json.loads(capsys.readouterr().out)["nests"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((["tune", "train", *words.split()], FEW_WORDS) for words in (
            "--tables 1", "--rounds 0", "--depth 0", "--seed -1", "--learner ppo --actors 0")),
        (["tune", "train", "--actors", "2"], "the learner fitted has no actors"),
        (["tune", "train", "--folder", "/proc/none", *SMALL], "/proc/none cannot be made"),
        (["tune", "mk,kn->mn", "--sizes", "8,8,8", "--policy", "/none"], "/none is no policy"),
    ],
)  # fmt: skip
def test_wrong_input(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.splitlines()[0] == message
