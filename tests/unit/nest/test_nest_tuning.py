"""Agents' view, environment, tables and searches: on a stub for the machine, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from recurra.errors import RecurraError
from recurra.nest import catalogue
from recurra.nest.actions import PAPER, Actions
from recurra.nest.agents.vector_env import VectorEnv
from recurra.nest.gymnasium_env import LoopNestEnv
from recurra.nest.loops import Nest, scheduled, untiled
from recurra.nest.measured_table import Table, load, tabulate
from recurra.nest.observation import state_graph, vector
from recurra.nest.problem import NestProblem
from recurra.nest.search import SEARCHES, FoundNest, reachable, search_nests, strategy

MATMUL = catalogue.matmul(256, 256, 128)
FEW = Actions((4, 8), max_loops=10, steps=4)


def stub(nest: Nest) -> float:
    """A landscape with local optima: GFLOPS that only depend on the order's text."""
    return 1.0 + sum(map(ord, nest.order)) * 7919 % 97


def stub_of(problem: NestProblem) -> Callable[[Nest], float]:
    return stub


# What an agent sees


def test_the_graph_prints() -> None:
    """Figure 5, for i = m, j = k, k = n."""
    assert str(state_graph(untiled(MATMUL))) == (
        "L0: for m in 256 -> L1; strides: A 256, T 128  <<<\n"
        "L1: for k in 256 -> L2; strides: A 1, B 128\n"
        "L2: for n in 128 -> compute; strides: B 1, T 1\n"
        "L3: for m in 256 -> L4; strides: T 128, C 128\n"
        "L4: for n in 128 -> write; strides: T 1, C 1\n"
        "A -> compute\nB -> compute\ncompute -> T\nT -> write\nwrite -> C"
    )


def test_the_vector() -> None:
    nest = scheduled(catalogue.matmul(100, 256, 128), "m/6 k m n")
    v = vector(nest, 10)
    assert v.shape == (10, 20)
    assert v[:, :4].tolist()[:7] == [
        [1, 16, 4, 1], [0, 256, 0, 1], [0, 6, 0, 1], [0, 128, 0, 1],
        [0, 100, 0, 0], [0, 128, 0, 0], [0, 0, 0, 0],
    ]  # fmt: skip
    bins = [{int(b): int(x[4 + b]) for b in np.flatnonzero(x[4:])} for x in v]
    assert bins[:6] == [
        {11: 1, 10: 1},  # m/6: 1536 elements of A, 768 of T
        {0: 1, 7: 1},  # k: 1 of A, 128 of B
        {8: 1, 7: 1},  # m: 256 of A, 128 of T
        {0: 2},  # n: 1 of B, 1 of T
        {7: 2},
        {0: 2},
    ]


def test_the_vector_is_the_graph_in_numbers() -> None:
    for nest in list(reachable(untiled(MATMUL), FEW))[::7]:
        v, g = vector(nest, 10), state_graph(nest)
        for k, (name, _) in enumerate(g.loops):
            strides = [s for loop, _, s in g.strides if loop == name]
            counted = np.bincount([(s - 1).bit_length() for s in strides], minlength=16)
            assert v[k, 4:].tolist() == counted.tolist()
        assert [g.cursor] == [f"L{k}" for k in np.flatnonzero(v[:, 0])]


# The environment


def environment(**options: object) -> LoopNestEnv:
    problems = [MATMUL, catalogue.matmul(64, 96, 80)]
    return LoopNestEnv(problems, evaluator=stub_of, peak_gflops=100.0, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("actions", ["full", "paper"])
def test_check_env(actions: str) -> None:
    made = gymnasium.make(
        "LoopNest-v0", problems=[MATMUL], actions=actions, evaluator=stub_of, peak_gflops=100.0,
        render_mode="ansi",
    )  # fmt: skip
    check_env(made.unwrapped)


def test_rewards_are_differences_of_gflops() -> None:
    env = environment(actions=FEW)
    _, info = env.reset(seed=3, options={"problem": 1})
    before, total = info["gflops"], 0.0
    for name in ("split_8", "down", "swap_down", "split_4"):
        _, reward, terminated, truncated, info = env.step(FEW.names.index(name))
        total += reward
        assert not terminated
    assert truncated
    assert total == pytest.approx((info["gflops"] - before) / 100.0)
    assert info["nest"].order == "m/8 k m/4 m n | m n"


def test_illegal_actions_do_nothing() -> None:
    env = environment(actions=FEW)
    seen, info = env.reset(seed=0)
    up = FEW.names.index("up")
    assert not info["action_mask"][up]
    after, reward, _, _, info = env.step(up)
    assert reward == 0.0
    assert (after == seen).all()


def test_episodes_depend_on_seed_and_actions_alone() -> None:
    def episode(seed: int) -> list[tuple[str, float]]:
        env, random = environment(), np.random.default_rng(seed)
        _, info = env.reset(seed=seed)
        found: list[tuple[str, float]] = []
        for _ in range(10):
            action = random.choice(np.flatnonzero(info["action_mask"]))
            _, reward, _, _, info = env.step(action)
            found.append((info["nest"].order, reward))
        return found

    assert episode(5) == episode(5)
    assert episode(5) != episode(6)


def test_wrong_environments() -> None:
    with pytest.raises(RecurraError, match="an environment needs a problem"):
        LoopNestEnv([])
    with pytest.raises(RecurraError, match="there is no set of actions 'all'"):
        LoopNestEnv(MATMUL, actions="all")
    with pytest.raises(RecurraError, match="has too many loops for these actions"):
        LoopNestEnv(catalogue.convolution(1, 8, 8, 8, 8), actions="paper")


def test_render() -> None:
    env = environment(render_mode="ansi")
    env.reset(seed=0, options={"problem": 0})
    text = env.render()
    assert "for m in 256:  <<<\n  for k in 256:" in text
    assert "GFLOPS" in text
    assert "A -> compute" in text


# Tables


@pytest.fixture(scope="module")
def table() -> Table:
    return tabulate(MATMUL, FEW, stub, 100.0)


def test_a_table_knows_every_way(table: Table) -> None:
    """Against the actions themselves: every state, every action."""
    known = set(zip(table.orders, table.cursors.tolist(), strict=True))
    for state, (a, name) in product(range(len(table.orders)), enumerate(FEW.names)):
        nest = table.nest(state)
        child = FEW.successors(nest).get(name)
        way = child and (child.order, child.cursor) in known
        assert table.legal[state, a] == bool(way)
        there = table.nest(int(table.after[state, a]))
        assert there == (child if way else nest)


def test_a_table_reaches_what_episodes_reach(table: Table) -> None:
    found = {(table.orders[k], int(table.cursors[k])) for k in range(len(table.orders))}
    assert found == {(n.order, n.cursor) for n in reachable(untiled(MATMUL), FEW)}
    assert table.best == max(stub(n) for n in reachable(untiled(MATMUL), FEW))


def test_an_episode_in_a_table_is_one_of_the_environment(table: Table) -> None:
    env, world = environment(actions=FEW), VectorEnv.of([table])
    seen, info = env.reset(seed=0, options={"problem": 0})

    left = list[float]()

    def choose(observed: Any, legal: Any, random: Any) -> tuple[Any, Any]:
        left.append(float(observed[0, -1]))
        actions = [random.choice(np.flatnonzero(row)) for row in legal]
        return np.array(actions), np.zeros(3, np.float32)

    random = np.random.default_rng(2)
    rows = world.rollout(world.draw_starts(3, random), choose, random)
    assert left == [k / FEW.steps for k in range(FEW.steps, 0, -1)]
    for states, actions, rewards in zip(rows.states, rows.actions, rows.rewards, strict=True):
        np.testing.assert_array_equal(vector(table.nest(int(states[0])), FEW.max_loops), seen)
        np.testing.assert_array_equal(world.legal[states[0]], info["action_mask"])
        seen, reward, _, truncated, info = env.step(int(actions[0]))
        assert rewards[0] == pytest.approx(reward)
    assert truncated
    assert table.orders[rows.last[0]] == info["nest"].order


def test_a_table_is_saved_and_loaded(table: Table, tmp_path: Path) -> None:
    table.save(tmp_path / "matmul.npz")
    again = load(tmp_path / "matmul.npz")
    assert (again.problem, again.actions, again.orders) == (MATMUL, FEW, table.orders)
    np.testing.assert_array_equal(again.after, table.after)
    np.testing.assert_array_equal(again.gflops, table.gflops)
    assert again.evaluate(untiled(MATMUL)) == np.float32(stub(untiled(MATMUL)))
    whole, none = (tmp_path / "matmul.npz").read_bytes(), tmp_path / "none.npz"
    for content in (b"none", b"", whole[: len(whole) // 2], whole[: len(whole) - 30]):
        none.write_bytes(content)
        with pytest.raises(RecurraError, match="is no table of nests"):
            load(none)
    with np.load(tmp_path / "matmul.npz") as file:
        arrays = dict(file)
    about = json.loads(str(arrays["about"]))
    for wrong in ({**about, "actions": 3}, {**about, "orders": None}, [], {"format": 1}):
        np.savez(none, **{**arrays, "about": json.dumps(wrong)})
        with pytest.raises(RecurraError, match="is no table of nests"):
            load(none)
    with pytest.raises(RecurraError, match="the table does not know the nest"):
        again.evaluate(scheduled(MATMUL, "m/32 m n k"))


# Searches


def found(name: str, actions: Actions = FEW, **options: object) -> FoundNest:
    start = untiled(MATMUL)
    return search_nests(strategy(name), start, stub, actions, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", SEARCHES)
def test_searches(name: str) -> None:
    result = found(name)
    assert result.gflops == stub(result.nest)
    assert stub(untiled(MATMUL)) <= result.gflops <= found("exhaustive").gflops
    assert result.trace[-1][1] == result.gflops
    assert [g for _, g in result.trace] == sorted(g for _, g in result.trace)
    assert result.finished


def test_the_exhaustive_search_is_an_oracle(table: Table) -> None:
    assert found("exhaustive").gflops == table.best
    assert found("random").gflops == table.best  # a small space, walked until nothing is new


def test_wider_beams_see_more() -> None:
    counts = [found(f"beam{width}bfs").evaluated for width in (1, 2, 4, 8)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    everything = found("exhaustive").evaluated
    assert found("beam8bfs").evaluated == found("beam8dfs").evaluated == everything


def test_beams_rank_by_gflops() -> None:
    """Not by the action's name, as the published ones do: only swap_down leads anywhere here."""
    good = {"m k n | m n": 1.0, "k m n | m n": 5.0, "k n m | m n": 9.0}

    def evaluate(nest: Nest) -> float:
        return good.get(nest.order, 0.0)

    result = search_nests(strategy("beam1bfs"), untiled(MATMUL), evaluate, FEW)
    assert result.nest.order == "k n m | m n"


def test_greedy_looks_ahead() -> None:
    """One bad step before the good one: greedy2 takes it, greedy1 does not."""
    good = {"m k n | m n": 3.0, "k m n | m n": 2.0, "k n m | m n": 9.0}

    def evaluate(nest: Nest) -> float:
        return good.get(nest.order, 0.0)

    start = untiled(MATMUL)
    assert search_nests(strategy("greedy1"), start, evaluate, FEW).gflops == 3.0
    assert search_nests(strategy("greedy2"), start, evaluate, FEW).gflops == 9.0


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_end_in_time(name: str) -> None:
    """A clock that goes one second per look: at most a few looks after the end."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    result = found(name, PAPER, seconds=50.0, clock=clock)
    assert result.seconds <= 55
    assert result.evaluated >= 1
    assert not result.finished or name in ("greedy1", "greedy2")


def test_progress_is_told() -> None:
    told: list[int] = []
    result = found("beam2bfs", tell=lambda seconds, best, count: told.append(count))
    assert told == list(range(1, result.evaluated + 1))


def test_unknown_searches() -> None:
    with pytest.raises(RecurraError, match="there is no search 'beam0bfs'"):
        strategy("beam0bfs")


def test_vectors_of_a_table_are_those_of_its_nests(table: Table) -> None:
    every = table.vectors()
    for k in range(0, len(table.orders), 7):
        np.testing.assert_array_equal(every[k], vector(table.nest(k), FEW.max_loops))
