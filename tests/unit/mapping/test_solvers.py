"""Solvers' answers hold, bounds bound, what is exact is optimal, and nothing stops them badly."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_mappings import random_problem
from recurra.errors import RecurraError
from recurra.mapping import engine_choice
from recurra.mapping.bounds import bound
from recurra.mapping.model_library import instance
from recurra.mapping.priority_keys import FEATURES, Floats, features, keys
from recurra.mapping.search import Search, solver
from recurra.mapping.solvers import LEARNERS, SOLVERS, default, lns, solver_of
from recurra.mapping.solvers.exact import search_tree, solve_to_optimality
from recurra.mapping.struct_of_arrays import flat
from recurra.mapping.validate import InvalidSolution, validate, violations
from recurra.storage.mapping_problem import Placement, Problem, Solution, nothing

randoms = st.integers(0, 2**32).map(Random)
PYTHON = engine_choice.engine("python")
SHORT = 0.05  # seconds


def exact(problem: Problem, seconds: float = 60.0) -> tuple[Solution, bool]:
    found = Search(problem, seconds, 0, None, PYTHON)
    proved = solve_to_optimality(found)
    return found.solution, proved


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SOLVERS if n not in ("pack", *LEARNERS)])
def test_every_answer_holds(name: str) -> None:
    random = Random(name)
    for _ in range(8):
        told = answered(name, random_problem(random))
        assert told == sorted(set(told))


def answered(name: str, problem: Problem) -> list[int]:
    """What a solver tells on its way; its answer is the last of it."""
    told: list[int] = []
    tell = told.append
    answer = solver_of(name)(problem, SHORT, 1, lambda _, reward, __: tell(reward), PYTHON)
    reward = validate(problem, answer)
    assert reward in ([told[-1] if told else 0] if name != "prod" else [0, *told])
    assert answer.reward(problem) <= bound(problem).reward
    return told


@pytest.mark.slow
@settings(max_examples=40)
@given(randoms)
def test_exact_is_not_beaten(random: Random) -> None:
    problem = random_problem(random, 6, random.randint(2, 9))
    if len(problem.buffers) > 8:
        return
    best = exact(problem)[0].reward(problem)
    for name in ("random", "greedy", "lns", "priority", "mcts"):
        assert solver_of(name)(problem, 0.02, 0, None, PYTHON).reward(problem) <= best


@settings(max_examples=12)
@given(randoms)
def test_exact_is_what_trying_everything_finds(random: Random) -> None:
    problem = random_problem(random, 3, random.randint(1, 4))
    if len(problem.buffers) > 3:
        return
    steps, best = range(problem.steps), 0
    every: list[list[Placement | None]] = []
    for i in range(len(problem.buffers)):
        options: list[Placement | None] = [None]
        for offset, s, e, copied in product(range(4), steps, steps, (False, True)):
            p = Placement(offset, s, e, copied)
            alone = Solution(tuple(p if j == i else None for j in range(len(problem.buffers))))
            found = {v.constraint for v in violations(problem, alone)}
            if not found & {"target time", "fast memory"}:
                options.append(p)
        every.append(options)
    for placements in product(*every):
        solution = Solution(placements)
        if solution.reward(problem) > best and not violations(problem, solution):
            best = solution.reward(problem)
    answer, proved = exact(problem)
    assert proved
    assert validate(problem, answer) == best


@settings(max_examples=60)
@given(randoms)
def test_the_bound_proves_what_the_tree_does(random: Random) -> None:
    problem = random_problem(random, 8, random.randint(2, 9))
    if len(problem.buffers) > 9:
        return
    tree = Search(problem, 60, 0, None, PYTHON)
    assert search_tree(tree)
    answer, proved = exact(problem)
    assert proved
    assert answer.reward(problem) == tree.reward


@pytest.mark.slow
def test_what_no_tree_ends_for_is_proved_by_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_tree(_: Search) -> bool:
        return False

    monkeypatch.setattr("recurra.mapping.solvers.exact.search_tree", no_tree)
    some = [random_problem(Random(k), 14) for k in range(10)]
    proved = [exact(p)[1] for p in some]
    assert len(some) / 2 < sum(proved) < len(some)


def test_seeds_decide() -> None:
    problem = instance("ppo_step")

    def first(seed: int) -> list[int]:
        found: list[int] = []

        def tell(_: float, reward: int, __: Solution) -> None:
            found.append(reward)
            if len(found) == 3:
                raise KeyboardInterrupt

        solver_of("random")(problem, 60, seed, tell, PYTHON)
        return found

    assert first(3) == first(3) != first(4)


def test_small_programs_are_climbed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is time for three, two are short; the rest is in equal parts, to the end."""
    found: list[tuple[float, float]] = []

    def evolved(search: Search, until: float) -> Floats:
        assert until > search.spent / search.seconds
        return np.zeros(len(search.flat.grouped))

    def climbed(search: Search, _: Floats, __: Floats, until: float) -> None:
        found.append((search.spent, until * search.seconds))
        search.worker_seconds += until * search.seconds - search.spent

    monkeypatch.setattr(default, "evolve", evolved)
    monkeypatch.setattr(default, "ruin_and_recreate", climbed)
    problem = instance("ppo_step")  # 250 buffers
    for seconds, count, short in ((2.0, 1, 0), (5.0, 2, 0), (9.0, 4, 2), (1000.0, 8, 2)):
        found.clear()
        solver_of("default")(problem, seconds, engine=PYTHON)
        begun, ended = zip(*found, strict=True)
        assert len(found) == default.climb_count(len(problem.buffers), seconds) == count
        assert ended[-1] == pytest.approx(seconds)
        lasted = np.subtract(ended, begun)
        np.testing.assert_allclose(lasted[:short], default.GLANCE, rtol=0.2)
        each = (seconds - short * default.GLANCE) / (count - short)
        np.testing.assert_allclose(lasted[short:], each, rtol=0.2)
    assert default.climb_count(9759, 16.0) == 1


def test_of_answers_that_gain_alike_the_fastest_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = instance("ppo_step")
    one = solver_of("greedy")(problem, 0.5, engine=PYTHON)
    k, moved = next((k, p) for k, p in enumerate(one.placements) if p is not None)
    other = list(one.placements)
    other[k] = moved._replace(offset=moved.offset + 1)
    reward, another = one.reward(problem), Solution(tuple(other))
    found = iter([(reward, another), (reward, one), (reward, one), (0, nothing(problem))])
    asked: list[list[Solution]] = []

    def climbed(search: Search, *_: object) -> None:
        search.worker_seconds += 2.0
        if x := next(found, None):
            search.offer(x[0], lambda: x[1])
            search.offer_tie(x[0], lambda: x[1])

    def fastest(_: Problem, some: Iterable[Solution]) -> Solution:
        asked.append(list(some))
        return another

    def key(search: Search, *_: object) -> Floats:
        return keys(search.flat)["area"]

    monkeypatch.setattr(default, "place_by_keys", key)
    monkeypatch.setattr(default, "evolve", key)
    monkeypatch.setattr(default, "ruin_and_recreate", climbed)
    monkeypatch.setattr(default, "fastest", fastest)
    search = Search(problem, 10.0, 0, None, PYTHON)
    default.search_by_default(search)
    assert asked == [[one, another]]  # the last first, each once
    assert search.solution == another


def test_a_tensor_makes_room_for_all_that_lives_while_it_does() -> None:
    problem = instance("alexnet_train")
    lives = lns.StorageOverlaps(flat(problem))
    members = [[problem.buffers[i].target_time for i in m] for m in problem.storages]
    spans = [(min(m), max(m)) for m in members]
    ends = set[bool]()
    for seed in range(20):
        random = np.random.default_rng(seed)
        rounds = lives.rounds(random, np.zeros(len(spans)), 1e6)
        assert (rounds.bear >= 0).all()
        assert not (rounds.skip | rounds.copy | rounds.short).any()
        for row in rounds.order.tolist():
            order = [s for s in row if s >= 0]
            assert len(set(order)) == len(order)
            meets = [sum(_meet(spans[s], spans[q]) for q in order) for s in (order[0], order[-1])]
            assert len(order) in meets
            drawn = order[0] if meets[0] == len(order) else order[-1]
            ends.add(drawn == order[0])
            assert len(order) <= min(lns.MOST, sum(_meet(spans[drawn], x) for x in spans))
    assert ends == {True, False}


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def test_an_interrupt_gives_the_best_so_far() -> None:
    @solver
    def interrupted(found: Search) -> None:
        solver_answer = solver_of("greedy")(found.problem, 1, 0, None, PYTHON)
        found.offer(solver_answer.reward(found.problem), lambda: solver_answer)
        raise KeyboardInterrupt

    problem = instance("ppo_step")
    assert interrupted(problem, 1, engine=PYTHON).reward(problem) > 0.5 * problem.total

    @solver
    def exhausted(found: Search) -> None:
        raise MemoryError

    assert exhausted(problem, 1, engine=PYTHON) == nothing(problem)


def test_an_answer_that_does_not_hold_is_not_given() -> None:
    @solver
    def wrong(found: Search) -> None:
        count = len(found.problem.buffers)
        everything = Solution((Placement(0, 0, 0, False),) * count)
        found.offer(everything.reward(found.problem), lambda: everything)

    with pytest.raises(InvalidSolution, match="ppo_step: target time"):
        wrong(instance("ppo_step"), 1, engine=PYTHON)


def test_wrong_wishes_are_refused() -> None:
    with pytest.raises(RecurraError, match="no solver 'magic'\n  there are: default, prod"):
        solver_of("magic")
    with pytest.raises(RecurraError, match="needs time, not 0 seconds"):
        solver_of("random")(instance("ppo_step"), 0)


def test_keys_and_features_are_numbers() -> None:
    for k in range(20):
        f = flat(random_problem(Random(k)))
        assert features(f).shape == (len(f.grouped), FEATURES)
        for values in (*keys(f).values(), features(f)):
            assert np.isfinite(values).all()


def test_a_fast_memory_for_everything_is_used_for_everything() -> None:
    problem = instance("ppo_step")
    free = tuple(replace(b, demand=0) for b in problem.buffers)
    roomy = Problem("roomy", 2**40, problem.instructions, free)
    answer = solver_of("greedy")(roomy, 1, engine=PYTHON)
    assert answer.reward(roomy) == roomy.total == bound(roomy).reward


def test_the_engine_is_chosen_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def chosen() -> engine_choice.Engine:
        asked.append(1)
        return PYTHON

    monkeypatch.setattr(engine_choice, "engine", chosen)
    solver_of("greedy")(instance("ppo_step"), 1)
    assert asked


@pytest.mark.slow
def test_a_proof_has_no_more_time_than_the_search() -> None:
    problem = instance("lstm")
    solver_of("exact")(instance("ppo_step"), 2.0, 0)  # SciPy is there
    begun = time.process_time()
    answer = solver_of("exact")(problem, 0.5, 0)
    assert time.process_time() - begun < 1.2
    assert validate(problem, answer) > 0
