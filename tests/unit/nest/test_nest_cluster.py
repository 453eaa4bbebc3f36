"""Actors through Ray, which tests do not need: `odd_ray.py` has the calls of it that we make."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from odd_ray import Ray
from recurra import cli
from recurra.errors import RecurraError
from recurra.nest import catalogue
from recurra.nest.actions import Actions
from recurra.nest.agents import a3c, apex, impala, learning, ppo
from recurra.nest.agents.actors import ActorTask, RemoteActors, pool
from recurra.nest.agents.policy import initial, load
from recurra.nest.agents.sampling_actor import SamplingActor
from recurra.nest.agents.vector_env import VectorEnv, epsilon_greedy
from recurra.nest.loops import Nest
from recurra.nest.measured_table import Table, tabulate

FEW = Actions((4, 8), max_loops=10, steps=4)
OURS: dict[str, Any] = dict(actors=2, pool="ray", batch=16)
TINY = impala.ImpalaSettings(rounds=12, hidden=(8,), **OURS)


def tile(nest: Nest) -> float:
    """Splits under the reduction are worth most."""
    order = nest.order.split(" | ")[0].split()
    return 10.0 + 20 * len(order[order.index("k") + 1 :] if "k" in order else []) + len(order)


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    sizes = [(64, 64, 64), (128, 64, 96)]
    return [tabulate(catalogue.matmul(*s), FEW, tile, 100.0) for s in sizes]


@pytest.fixture(scope="module")
def world(tables: list[Table]) -> VectorEnv:
    return VectorEnv.of(tables)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    found = Ray()
    monkeypatch.setitem(sys.modules, "ray", found)
    yield found
    found.end()


class Dying(SamplingActor):
    def work(self, weights: Any) -> Any:
        raise SystemExit(3)


class Broken(SamplingActor):
    def work(self, weights: Any) -> Any:
        raise ValueError("no more walks")


class Hanging(SamplingActor):
    """Answers once; then not before long, in the first of its lives."""

    def __init__(self, world: Any, task: Any) -> None:
        super().__init__(world, task)
        self.life, self.answers = task.seed[-1], 0

    def work(self, weights: Any) -> Any:
        self.answers += 1
        if self.answers > 1 and self.life == 0:
            time.sleep(1.0)
        return super().work(weights)


def asked(
    world: VectorEnv, kind: Any = SamplingActor, count: int = 1
) -> tuple[RemoteActors, list[str], Any]:
    """A pool on Ray, what it says, and weights to ask by."""
    found = pool(kind, world, replace(TINY, actors=count))
    assert isinstance(found, RemoteActors)
    said = list[str]()
    found.crew.say = said.append
    return found, said, initial(201, len(FEW.names), (8,), 0)


def test_what_is_shared_is_sent_once(world: VectorEnv, ray: Ray) -> None:
    """The world, and the weights, for all three; a Ray of our own is ended with us."""
    found, _, weights = asked(world, count=3)
    assert ray.begun is not None
    assert ray.begun["address"] == "local"
    found.begin(weights)
    answers = dict(found.answer() for _ in range(3))
    assert ray.puts == 2
    assert [answers[k]["states"].shape for k in range(3)] == [(FEW.steps, 16)] * 3
    walked = {answers[k]["actions"].tobytes() for k in range(3)}
    assert len(walked) == 3, "each has random numbers of its own"
    found.close()
    assert all(actor.dead for actor in ray.actors)
    assert not ray.is_initialized()
    assert ray.options["max_restarts"] == 0


def test_a_ray_that_was_there_goes_on(world: VectorEnv, ray: Ray) -> None:
    ray.begun = {}
    asked(world)[0].close()
    assert ray.is_initialized()


def test_a_dead_actor_is_replaced(world: VectorEnv, ray: Ray) -> None:
    """Killed while it is idle; what the new one is asked, it answers, with other random numbers."""
    found, said, weights = asked(world)
    found.begin(weights)
    _, first = found.answer()
    ray.actors[0].die()
    found.begin(weights)
    _, second = found.answer()
    assert said == ["actor 0 has died (ActorDiedError): another process takes its place"]
    assert (first["actions"] != second["actions"]).any()
    assert len(ray.actors) == 2


def test_actors_that_die_in_turn(world: VectorEnv, ray: Ray) -> None:
    found, said, weights = asked(world, Dying)
    found.begin(weights)
    with pytest.raises(RecurraError, match=r"(?s)so did those before.*in turn.*died unexpectedly"):
        found.answer()
    assert len(said) == 2


def test_an_actor_that_raises(world: VectorEnv, ray: Ray) -> None:
    found, _, weights = asked(world, Broken)
    found.begin(weights)
    with pytest.raises(RecurraError, match=r"(?s)actor 0 has failed.*ValueError: no more walks"):
        found.answer()


def test_an_actor_that_hangs(world: VectorEnv, ray: Ray) -> None:
    found, said, weights = asked(world, Hanging)
    found.begin(weights)
    found.answer()
    found.crew.patience = 0.2
    found.begin(weights)
    assert found.answer()[1]["states"].shape == (FEW.steps, 16)
    assert said == ["actor 0 has not answered for 0 s: another process takes its place"]
    assert ray.actors[0].dead


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [
        (apex.ApeX, apex.ApexSettings, 600),
        (impala.Impala, impala.ImpalaSettings, 200),
        (a3c.A3c, a3c.A3cSettings, 200),
        (ppo.PpoLearner, ppo.PpoSettings, 50),
    ],
    ids=["apex", "impala", "a3c", "ppo"],
)
def test_learning(learner: Any, world: VectorEnv, ray: Ray) -> None:
    """With one that dies on the way."""
    kind, settings, rounds = learner
    one = kind(world, settings(rounds=rounds, hidden=(64, 64), learning_rate=2e-3, **OURS))
    update = one.update

    def updated(done: int) -> Any:
        if done == rounds // 2:
            ray.actors[0].die()
        return update(done)

    one.update = updated
    policy = learning.run_learner(one)
    anything = epsilon_greedy(initial(201, len(FEW.names), (4,), 0), 1.0)
    starts = np.repeat(world.first, 70)
    ends = world.rollout(starts, anything, np.random.default_rng(0)).last
    by_chance = float((world.shares[ends] / np.repeat(world.best, 70)).mean())
    assert world.greedy_shares(policy.weights).mean() > by_chance + 0.1
    assert len(ray.actors) == 3
    assert not ray.is_initialized()


# The command


COMMAND = ["tune", "train", "--tables", "2", "--learner", "apex"]


def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, *more: str) -> str:
    assert cli.main([*COMMAND, "--folder", str(tmp_path / "runs"), *more]) == 2
    assert not (tmp_path / "runs").exists(), "nothing was measured"
    return capsys.readouterr().err


@pytest.mark.slow
def test_one_that_dies_does_not_spoil_the_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, ray: Ray
) -> None:
    """Ray says it on standard output."""
    work, calls = apex.Explorer.work, list[int]()

    def dying(self: apex.Explorer, weights: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise SystemExit(3)
        return work(self, weights)

    monkeypatch.setattr(apex.Explorer, "work", dying)
    command = [*COMMAND, "--folder", str(tmp_path), "--depth", "2", "--rounds", "12", "--json"]
    assert cli.main([*command, "--pool", "ray", "--actors", "1"]) == 0
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert "(raylet) A worker died" in told.err
    assert "another process takes its place" in told.err
    command = load(Path(report["policy"])).about["command"]
    assert "--learner apex --rounds 12 --seed 0 --actors 1 --pool ray" in command


def test_without_ray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = told(capsys, tmp_path, "--pool", "ray")
    assert words.startswith("a cluster of actors needs the package ray")
    assert 'hint: pip install "recurra[cluster]"' in words


def test_addresses_are_of_clusters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, world: VectorEnv, ray: Ray
) -> None:
    words = told(capsys, tmp_path, "--address", "10.0.0.1:6379")
    assert "--address 10.0.0.1:6379, but --pool is left out\n  hint: --pool ray" in words
    with pytest.raises(RecurraError, match=r"no Ray cluster at 10.0.0.1:6379\n  Could not"):
        pool(SamplingActor, world, replace(TINY, address="10.0.0.1:6379"))


def test_a_learner_without_actors_has_no_pool(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ray: Ray
) -> None:
    words = told(capsys, tmp_path, "--pool", "ray", "--learner", "dqn")
    assert words.startswith("the learner dqn has no actors\n  --pool ray")


def test_checkpoints_do_not_know_addresses() -> None:
    assert str(replace(TINY, address="10.0.0.1:6379")) == str(TINY)


def test_tasks_are_given_as_they_are(world: VectorEnv, ray: Ray) -> None:
    found, _, _ = asked(world, count=2)
    given = [found.crew.arguments(k) for k in (0, 1, 1)]
    assert [x.seed for x in given] == [(0, 0, 0, 0), (0, 1, 0, 0), (0, 1, 0, 1)]
    assert all(isinstance(x, ActorTask) for x in given)
