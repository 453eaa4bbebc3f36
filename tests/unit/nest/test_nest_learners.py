"""Learners with actors: on a small table they beat chance, stop and go on, and outlive actors."""

from __future__ import annotations

import importlib
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

from documents import SUPPORT
from odd_actors import Broken, Dying, Hanging
from recurra import cli
from recurra.errors import RecurraError
from recurra.nest import catalogue
from recurra.nest.actions import Actions
from recurra.nest.agents import a3c, apex, dqn, fitted, impala, learning, network, ppo, replay
from recurra.nest.agents.actors import ActorProcesses, ActorTask
from recurra.nest.agents.policy import initial
from recurra.nest.agents.sampling_actor import SamplingActor
from recurra.nest.agents.vector_env import TRANSITION, VectorEnv, epsilon_greedy, load_vector_env
from recurra.nest.loops import Nest
from recurra.nest.measured_table import Table, tabulate

FEW = Actions((4, 8), max_loops=10, steps=4)
SMALL: dict[str, Any] = dict(hidden=(64, 64), actors=2, pool="turns", batch=16, learning_rate=2e-3)
SHORT: dict[str, Any] = {
    "apex": apex.ApexSettings(rounds=600, learn_from=64, target_every=50, **SMALL),
    "ppo": ppo.PpoSettings(rounds=60, **SMALL),
    "a3c": a3c.A3cSettings(rounds=500, **SMALL),
    "impala": impala.ImpalaSettings(rounds=500, **SMALL),
}
TINY: dict[str, Any] = {
    **{name: replace(s, rounds=12, hidden=(8,)) for name, s in SHORT.items()},
    "dqn": dqn.DqnSettings(rounds=12, batch=8, hidden=(8,), learn_from=8, target_every=5),
    "fitted": fitted.FittedSettings(rounds=12, batch=16, hidden=(8,), walks=4),
}


def tile(nest: Nest) -> float:
    """Two splits under the reduction are worth most; the way there first costs something."""
    order = nest.order.split(" | ")[0].split()
    inside = order[order.index("k") + 1 :] if "k" in order else []
    return 10.0 + 20 * len(inside) - 6 * sum("/" in word for word in order[:2]) + len(order)


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    sizes = [(64, 64, 64), (128, 64, 96), (96, 160, 64)]
    return [tabulate(catalogue.matmul(*s), FEW, tile, 100.0) for s in sizes]


@pytest.fixture(scope="module")
def world(tables: list[Table]) -> VectorEnv:
    return VectorEnv.of(tables)


def trained(name: str, tables: list[Table], settings: Any, **options: Any) -> Any:
    module = importlib.import_module(f"recurra.nest.agents.{name}")
    return module.train(tables, settings, **options)


def at_random(world: VectorEnv) -> float:
    starts = np.repeat(world.first, 70)
    anything = epsilon_greedy(initial(201, len(FEW.names), (4,), 0), 1.0)
    ends = world.rollout(starts, anything, np.random.default_rng(0)).last
    return float((world.shares[ends] / np.repeat(world.best, 70)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_learning_beats_chance_soon(name: str, tables: list[Table], world: VectorEnv) -> None:
    points = list[learning.LearningPoint]()
    policy = trained(name, tables, SHORT[name], tell=points.append, every=50)
    assert world.greedy_shares(policy.weights).mean() > at_random(world) + 0.1
    assert points[-1].steps <= 500 * 16 * 4
    assert points[-1].reward > points[0].reward


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_run_that_stopped_goes_on(name: str, tables: list[Table], tmp_path: Path) -> None:
    """To the last bit: twelve rounds, and seven, then five more from the checkpoint."""
    straight = trained(name, tables, TINY[name])

    class Stop(Exception):
        pass

    def stop(point: learning.LearningPoint) -> None:
        if point.rounds > 7:
            raise Stop

    path = tmp_path / "checkpoint.npz"
    with pytest.raises(Stop):
        trained(name, tables, TINY[name], tell=stop, every=7, checkpoint=path)
    assert learning.checkpoint_rounds(path) == 7
    again = trained(name, tables, TINY[name], checkpoint=path)
    for key, w in straight.weights.items():
        np.testing.assert_array_equal(w, again.weights[key])
    assert learning.checkpoint_rounds(path) == 12


def test_checkpoints_of_something_else(tables: list[Table], tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    trained("fitted", tables, TINY["fitted"], checkpoint=path)
    with pytest.raises(RecurraError, match=r"is of fitted\n  it has fitted; this is dqn"):
        trained("dqn", tables, TINY["dqn"], checkpoint=path)
    with pytest.raises(RecurraError, match="is of other settings"):
        trained("fitted", tables, replace(TINY["fitted"], seed=1), checkpoint=path)
    with pytest.raises(RecurraError, match="is of other tables"):
        trained("fitted", tables[:2], TINY["fitted"], checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RecurraError, match="is no checkpoint"):
        trained("fitted", tables, TINY["fitted"], checkpoint=path)


# Processes


def processes(world: VectorEnv, count: int, **options: Any) -> ActorProcesses:
    settings = replace(TINY["impala"], actors=count)
    return ActorProcesses(
        world,
        [ActorTask(SamplingActor, settings, k, count, (0, k)) for k in range(count)],
        **options,
    )


@pytest.mark.slow
def test_a_dead_actor_is_replaced(world: VectorEnv) -> None:
    """Killed while it is idle, while it is asked; what it was asked is answered all the same."""
    said = list[str]()
    pool, weights = processes(world, 2, say=said.append), initial(201, len(FEW.names), (8,), 0)
    try:
        pool.begin(weights)
        _, found = pool.answer()
        assert found["states"].shape == (FEW.steps, 16)
        for k in (0, 1):
            os.kill(pool.crew.workers[k].worker.process.pid, signal.SIGKILL)
            pool.crew.workers[k].worker.process.wait()
        for _ in range(2):  # one may have answered before it was killed
            pool.begin(weights)
            assert {pool.answer()[0], pool.answer()[0]} == {0, 1}
    finally:
        pool.close()
    assert sorted(said)[0] == "actor 0 has died (signal 9): another process takes its place"
    assert [words.split()[1] for words in sorted(said)] == ["0", "1"]


def odd(
    kind: Any, world: VectorEnv, monkeypatch: pytest.MonkeyPatch, say: Any = None
) -> ActorProcesses:
    """One actor of tests/support/odd_actors.py, which its process must find."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    settings = replace(TINY["impala"], actors=1)
    return ActorProcesses(world, [ActorTask(kind, settings, 0, 1, (0, 0))], say=say)


def test_an_actor_that_raises(world: VectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = odd(Broken, world, monkeypatch)
    pool.begin(initial(201, len(FEW.names), (8,), 0))
    with pytest.raises(RecurraError, match=r"(?s)actor 0 has failed.*ValueError: no more walks"):
        pool.answer()
    pool.close()


@pytest.mark.slow
def test_actors_that_die_in_turn(world: VectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    pool = odd(Dying, world, monkeypatch, said.append)
    pool.begin(initial(201, len(FEW.names), (8,), 0))
    with pytest.raises(RecurraError, match=r"actor 0 has died \(code 3\), and so did"):
        pool.answer()
    pool.close()
    assert len(said) == 2


@pytest.mark.slow
def test_an_actor_that_hangs(world: VectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second answer never comes; the process after it is given its time."""
    said = list[str]()

    def say(words: str) -> None:
        said.append(words)
        pool.crew.patience = 120.0

    pool, weights = odd(Hanging, world, monkeypatch, say), initial(201, len(FEW.names), (8,), 0)
    pool.begin(weights)
    pool.answer()
    pool.crew.patience = 0.2
    pool.begin(weights)
    assert pool.answer()[1]["states"].shape == (FEW.steps, 16)
    pool.close()
    assert said == ["actor 0 has not answered for 0 s: another process takes its place"]


@pytest.mark.slow
def test_learning_by_processes(tables: list[Table], world: VectorEnv) -> None:
    """One that learns by gradients of others; what is left of it is nothing."""
    settings = replace(SHORT["a3c"], pool="processes", rounds=300)
    learner = a3c.A3c(world, settings)
    policy = learning.run_learner(learner)
    assert world.greedy_shares(policy.weights).mean() > at_random(world) + 0.1
    assert not learner.actors.crew.workers
    assert not Path(learner.actors.folder.name).exists()


# What they are made of


def test_worlds_are_mapped(world: VectorEnv, tmp_path: Path) -> None:
    world.save(tmp_path)
    again = load_vector_env(tmp_path)
    assert again.actions == world.actions
    assert again.digest == world.digest
    assert isinstance(again.observations, np.memmap)
    np.testing.assert_array_equal(again.observe(world.first, 3), world.observe(world.first, 3))


def test_the_state_of_another_buffer_is_refused() -> None:
    with pytest.raises(RecurraError, match="another replay buffer") as told:
        replay.ReplayBuffer(4).restore({"arrays": {}, "next": 0})
    assert "it has arrays, next, but no priorities, no size" in str(told.value)


def test_priorities_decide_what_is_drawn() -> None:
    m, random = replay.ReplayBuffer(4), np.random.default_rng(0)

    def one(reward: float) -> dict[str, Any]:
        return {name: np.array([reward]) for name in TRANSITION}

    for k, priority in enumerate((9.0, 9.0, 1.0, 3.0, 0.0, 4.0)):  # the first two are overwritten
        m.add(one(k), np.array([priority]))
    places, batch = m.preferred(8000, 0.5, random)
    counts = np.bincount(places, minlength=4) / 8000
    np.testing.assert_allclose(counts, np.array([0, 4, 1, 3]) / 8, atol=0.03)
    assert set(batch["reward"]) == {5.0, 2.0, 3.0}
    weights = {int(r): float(w) for r, w in zip(batch["reward"], batch["weight"], strict=True)}
    assert weights[2] == 1.0
    assert weights[5] == pytest.approx((1 / 4) ** 0.5)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_steps_as_that_of_optax(decay: float) -> None:
    """With gradients made shorter, as learners do."""
    random = np.random.default_rng(0)
    theirs = ours = {k: random.standard_normal(3).astype(np.float32) for k in "ab"}
    adam = network.AdamState.zero(ours)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.01, weight_decay=decay))
    kept = tx.init(theirs)
    for _ in range(5):
        gradient = {k: random.standard_normal(3).astype(np.float32) for k in "ab"}
        ours, adam = adam.step(network.clip_by_norm(gradient, 1.0), ours, 0.01, decay)
        updates, kept = tx.update(gradient, kept, theirs)
        theirs = optax.apply_updates(theirs, updates)
        for k in "ab":
            np.testing.assert_allclose(ours[k], theirs[k], rtol=1e-5, atol=1e-6)


def test_generalized_advantages() -> None:
    """λ = 1: what is still earned beyond the value; λ = 0: one step's error."""
    random = np.random.default_rng(0)
    reward, value = (random.standard_normal((5, 3)).astype(np.float32) for _ in "rv")
    rest = np.cumsum(reward[::-1], axis=0)[::-1]
    np.testing.assert_allclose(
        ppo.generalized_advantages(reward, value, 1.0), rest - value, atol=1e-5
    )
    after = np.concatenate([value[1:], np.zeros((1, 3), np.float32)])
    np.testing.assert_allclose(
        ppo.generalized_advantages(reward, value, 0.0), reward + after - value
    )


def test_v_trace_is_the_sum_of_the_paper() -> None:
    """Against equation 1 of Espeholt et al., term by term."""
    random = np.random.default_rng(0)
    steps, count = 5, 3
    reward, value = (random.standard_normal((steps, count)).astype(np.float32) for _ in "rv")
    ratio = random.uniform(0.2, 2.0, (steps, count)).astype(np.float32)
    after = np.concatenate([value, np.zeros((1, count), np.float32)])[1:]
    rho = np.minimum(1, ratio)
    want = value.copy()
    for s in range(steps):
        for t in range(s, steps):
            want[s] += np.prod(rho[s:t], axis=0) * rho[t] * (reward[t] + after[t] - value[t])
    goal, advantage = (np.asarray(x) for x in impala.v_trace(reward, value, ratio))
    np.testing.assert_allclose(goal, want, rtol=1e-4, atol=1e-5)
    later = np.concatenate([want, np.zeros((1, count), np.float32)])[1:]
    np.testing.assert_allclose(advantage, rho * (reward + later - value), rtol=1e-4, atol=1e-5)


def test_every_actor_explores_by_an_epsilon_of_its_own(world: VectorEnv) -> None:
    settings = apex.ApexSettings(actors=3)
    found = [
        apex.Explorer(world, ActorTask(apex.Explorer, settings, k, 3, (0, k))) for k in range(3)
    ]
    assert [x.epsilon for x in found] == pytest.approx([0.4, 0.4**4.5, 0.4**8])


# The command


@pytest.mark.slow
def test_the_command_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "train", "--folder", str(tmp_path), "--tables", "2", "--depth", "2"]
    command += ["--learner", "dqn", "--rounds", "8", "--json"]
    assert cli.main([*command, "--resume"]) == 2
    assert "there is nothing to go on with in" in capsys.readouterr().err
    assert cli.main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert cli.main([*command, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["curve"] == first["curve"]
    assert cli.main([*command, "--seed", "1", "--resume"]) == 2
    assert "checkpoint.npz is of other" in capsys.readouterr().err
