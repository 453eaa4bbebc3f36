"""Games that are played on a cluster: by actors of Ray, of which `odd_ray.py` is a small twin."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mapping.test_learn import TINY, playable
from odd_ray import Ray
from recurra import cli
from recurra.mapping.learn.actors import ActorPool, ActorRequest
from recurra.mapping.learn.network import initial
from recurra.mapping.learn.network_inputs import program_features
from recurra.mapping.learn.settings import AgentSettings
from recurra.mapping.struct_of_arrays import flat

OURS = replace(TINY, pool="ray", actors=2, planning="none")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    found = Ray()
    monkeypatch.setitem(sys.modules, "ray", found)
    yield found
    found.end()


@pytest.mark.slow
def test_actors_of_ray_play_and_are_replaced(ray: Ray) -> None:
    """The problem is sent once; who dies is replaced, with other random numbers."""
    problem, said = playable(4), list[str]()
    weights = initial(OURS, program_features(flat(problem)), 0)
    pool = ActorPool(problem, Path("/not/on/this/machine.so"), OURS, 0, said.append)
    assert ray.puts == 1
    first = pool.answer(ActorRequest(weights, 1.0))
    assert first.segments.action.shape == (OURS.lanes, OURS.segment)
    assert first.seconds > 0
    ray.actors[0].die()
    while not said:
        pool.answer(ActorRequest(weights, 1.0))
    assert (
        pool.answer(ActorRequest(weights, 1.0)).segments.action.shape == first.segments.action.shape
    )
    pool.close()
    assert said == ["actor 0 has died (ActorDiedError): another process takes its place"]
    assert pool.state() == {"born": 3}
    assert not ray.is_initialized()


def test_the_command_asks_for_ray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["map", "train", "alexnet_train", "--folder", str(tmp_path / "runs")]
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main([*command, "--pool", "ray"]) == 2
    assert 'hint: pip install "recurra[cluster]"' in capsys.readouterr().err
    assert cli.main([*command, "--actors", "2", "--address", "10.0.0.1:6379"]) == 2
    assert "only actors on a cluster have an address" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_pools_by_option() -> None:
    """An address is no part of what a checkpoint must agree on."""
    from recurra.mapping.learn.command import MapTrainCommand

    assert MapTrainCommand("x").settings().pool == "turns"
    assert MapTrainCommand("x", actors=2).settings().pool == "processes"
    assert MapTrainCommand("x", actors=2, pool="turns").settings().pool == "turns"
    assert str(replace(AgentSettings(), address="10.0.0.1:6379")) == str(AgentSettings())
