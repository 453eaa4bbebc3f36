"""LoopNest-v0 for RLlib: what its learners see, what they may do; RLlib itself is not needed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from recurra.errors import RecurraError
from recurra.nest import catalogue
from recurra.nest.actions import Actions
from recurra.nest.agents import rllib
from recurra.nest.agents.vector_env import VectorEnv
from recurra.nest.loops import Nest
from recurra.nest.measured_table import Table, tabulate

FEW = Actions((4, 8), max_loops=10, steps=3)
COUNT = len(FEW.names)


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    def gflops(nest: Nest) -> float:
        return float(len(nest.order))

    sizes = [(64, 64, 64), (128, 64, 96)]
    return [tabulate(catalogue.matmul(*s), FEW, gflops, 100.0) for s in sizes]


def test_what_is_seen_is_what_our_own_agents_see(tables: list[Table]) -> None:
    """The mask, then the world's features, for the nests of a walk; rewards are the table's."""
    env, world = rllib.FlatLoopNest({"tables": tables}), VectorEnv.of(tables)
    seen, _ = env.reset(seed=0, options={"problem": 1})
    state, random, total, over = world.first[1], np.random.default_rng(0), 0.0, False
    for left in range(FEW.steps, -1, -1):
        np.testing.assert_array_equal(seen[:COUNT], env.env.actions.legal(env.env.nest))
        want = world.observe(np.array([state]), left)[0]
        np.testing.assert_allclose(seen[COUNT:], want, atol=1e-3)
        if left == 0:
            break
        assert not over
        action = int(random.choice(np.flatnonzero(world.legal[state])))
        seen, reward, over, cut, _ = env.step(action)
        state, total = int(world.after[state, action]), total + reward
        assert not cut, "the end is seen coming: nothing is earned after it"
    assert over
    assert total == pytest.approx(float(world.shares[state] - world.shares[world.first[1]]))


def test_it_is_an_environment(tables: list[Table]) -> None:
    check_env(rllib.FlatLoopNest({"tables": tables}), skip_render_check=True)


class Critic(torch.nn.Module):
    """As RLlib's: chances, whatever is seen."""

    def _forward(self, batch: Any, **options: Any) -> dict[str, Any]:
        assert options == {"t": 1}
        count = len(batch["obs"])
        return {"action_dist_inputs": torch.ones(count, 3), "embeddings": torch.zeros(count)}

    _forward_train = _forward


class Values(torch.nn.Module):
    def _qf_forward_helper(self, batch: Any, encoder: Any, head: Any) -> dict[str, Any]:
        return {"qf_preds": encoder(batch["obs"][:, :3]) + head}


SEEN = {"obs": torch.tensor([[1.0, 0.0, 1.0, 7.0], [0.0, 1.0, 0.0, 7.0]])}


def test_what_is_not_legal_has_no_chance() -> None:
    network = rllib.masked(Critic)()
    assert isinstance(network, Critic)
    for forward in (network._forward, network._forward_train):
        found = forward(SEEN, t=1)
        chances = torch.softmax(found["action_dist_inputs"], -1)
        assert chances.tolist() == [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]
        assert found["embeddings"].tolist() == [0.0, 0.0]


def test_what_is_not_legal_has_no_value() -> None:
    found = rllib.masked(Values)()._qf_forward_helper(SEEN, lambda x: x, 2.0)["qf_preds"]
    none = -float("inf")
    assert found.tolist() == [[3.0, none, 3.0], [none, 3.0, none]]


class Config:
    """Keeps what it is told, as RLlib's do."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def get_default_rl_module_spec(self) -> Any:
        return SimpleNamespace(module_class=Critic)

    def environment(self, name: str, *, env_config: Any) -> Config:
        self.told |= {"name": name, "env_config": env_config}
        return self

    def rl_module(self, *, rl_module_spec: Any) -> Config:
        self.told["spec"] = rl_module_spec
        return self

    def training(self, **options: Any) -> Config:
        self.told |= options
        return self


def test_configured(monkeypatch: pytest.MonkeyPatch, tables: list[Table]) -> None:
    known: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {
        "ray.tune.registry": {"register_env": known.__setitem__},
        "ray.rllib.core.rl_module.rl_module": {"RLModuleSpec": SimpleNamespace},
    }
    for name, has in parts.items():
        module = ModuleType(name)
        module.__dict__.update(has)
        monkeypatch.setitem(sys.modules, name, module)
        for k in range(1, name.count(".") + 1):
            folder = name.rsplit(".", k)[0]
            monkeypatch.setitem(sys.modules, folder, sys.modules.get(folder) or ModuleType(folder))
    told = rllib.configured(Config(), tables=tables).told
    assert known["LoopNest-v0"]({"tables": tables}).action_space.n == COUNT
    assert told["name"] == "LoopNest-v0"
    assert told["env_config"] == {"tables": tables}
    assert issubclass(told["spec"].module_class, Critic)
    assert told["gamma"] == 1.0


def test_without_rllib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        RecurraError,
        match=r'(?s)an agent of RLlib needs the package ray.*hint: pip install "recurra\[rllib\]"',
    ):
        rllib.register()
