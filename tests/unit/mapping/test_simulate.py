"""The simulator on programs that one can follow, and what must hold for all."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_mappings import random_problem
from recurra.mapping import engine_choice
from recurra.mapping.game import Game
from recurra.mapping.model_library import LIBRARY, instance
from recurra.mapping.simulate import correlation, fastest, simulate, speedup
from recurra.mapping.solvers import solver_of
from recurra.mapping.struct_of_arrays import flat
from recurra.storage.mapping_problem import (
    Buffer,
    Instruction,
    Latency,
    Placement,
    Problem,
    Roofline,
    Solution,
    nothing,
)

PYTHON = engine_choice.engine("python")
randoms = st.integers(0, 2**32).map(Random)

# Step 0 works for 4 ps, 3 of them on slow memory; step 1 reads 6 ps slow or 1 ps fast.
WORK = Instruction("work", 4, Roofline(4, (3,), (0,)))
READ = Instruction("read", 1, Roofline(0, (6,), (1,)))
OTHER = Buffer(4, False, 0, 0, None, (-1, 0), 9, 0)
VALUE = Buffer(4, False, 1, 1, None, (-1, 1), 3, 5)
PROGRAM = Problem("program", 8, (WORK, READ), (OTHER, VALUE))
COPIED = Solution((None, Placement(0, 0, 1, True)))


def test_an_instruction_waits_for_its_copies() -> None:
    assert simulate(PROGRAM, nothing(PROGRAM)).latency == 4 + 6
    free = simulate(PROGRAM, COPIED)
    assert (free.latency, free.stalls, free.starts) == (5, 0, (0, 4))
    busy = simulate(PROGRAM, COPIED, contention=True)  # 1 ps is idle, 2 of 3 are waited for
    assert (busy.latency, busy.waited, busy.starts) == (7, (0, 2, 0), (0, 6))
    shared = simulate(PROGRAM, COPIED, contention=True, drag=2.0)  # that 1 ps costs 2 more
    assert (shared.latency, shared.starts) == (9, (0, 8))
    assert simulate(PROGRAM, COPIED, drag=1.0).latency == 5 + 3
    assert speedup(PROGRAM, COPIED) == 10 / 7
    assert fastest(PROGRAM, [nothing(PROGRAM), COPIED]) == COPIED


def test_beside_a_table_copies_have_the_supply() -> None:
    work = Instruction("work", 4, Latency((0,), (10, 3)))
    other, value = (
        Buffer(4, False, 0, 0, None, (-1, 0), 9, 7),
        Buffer(4, False, 1, 1, None, (-1, 1), 6, 5),
    )
    problem = Problem("table", 8, (work, READ), (other, value))
    copied = Placement(0, 0, 1, True)
    busy = simulate(problem, Solution((None, copied)), contention=True)
    assert (busy.waited, busy.latency) == ((0, 2, 0), 10 + 2 + 1)  # 6 of 10 ps are the table's own
    assert simulate(problem, Solution((None, copied))).waited == (0, 0, 0)
    inside = Solution((Placement(4, 0, 0, True), copied))
    assert simulate(problem, inside, contention=True).waited == (0, 3, 0)  # 3 ps is all there is


def test_an_output_leaves_before_its_place_is_taken() -> None:
    made = Buffer(4, True, 0, 2, None, (0, 2), 5, 0)
    steps = (Instruction("make", 1), Instruction("next", 2), Instruction("last", 9))
    used = Buffer(1, False, 2, 3, None, (-1, 2), 1, 4)
    problem = Problem("leaving", 8, steps, (made, used))
    late = Solution((Placement(0, 0, 1, True), None))  # does not hold: 2 ps for 5
    assert simulate(problem, late).waited == (0, 0, 3, 0)
    assert simulate(problem, Solution((Placement(0, 0, 2, True), None))).waited == (0, 0, 0, 0)


@settings(max_examples=150)
@given(randoms)
def test_latency_is_what_the_reward_says_and_stalls(random: Random) -> None:
    problem = random_problem(random)
    game = Game(flat(problem))
    game.play_random([random.randrange(6) for _ in range(20)])
    solution = game.solution()
    slow = simulate(problem, nothing(problem))
    assert slow.stalls == 0
    for contention in (False, True):
        run = simulate(problem, solution, contention=contention)
        assert run.latency == slow.latency - game.reward + run.stalls
        assert run.latency >= run.starts[-1]
    assert simulate(problem, solution, contention=True).stalls >= simulate(problem, solution).stalls


@settings(max_examples=100)
@given(randoms)
def test_what_has_time_never_waits(random: Random) -> None:
    problem = random_problem(random)
    steps = list(problem.instructions)
    for t, uses in enumerate(problem.uses):
        cost = steps[t].cost
        if cost is not None:
            every = [cost.latency([m >> k & 1 == 1 for k in range(len(uses))]) for m in range(8)]
            steps[t] = replace(steps[t], supply=min(*every, cost.latency([True] * len(uses))))
    problem = Problem("supplied", problem.fast_size, tuple(steps), problem.buffers)
    game = Game(flat(problem))
    game.play_random([random.randrange(6) for _ in range(20)])
    if all(b.benefit >= 0 for b in problem.buffers):
        assert simulate(problem, game.solution()).stalls == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in LIBRARY if len(instance(n).buffers) < 1000])
def test_real_models(name: str) -> None:
    problem = instance(name)
    answer, baseline, best = (
        solver_of(s)(problem, 0.2, 0, None, PYTHON) for s in ("greedy", "xla-like", "prod")
    )
    assert simulate(problem, answer).stalls == 0
    assert 1 < speedup(problem, answer) <= speedup(problem, answer, contention=False)
    assert speedup(problem, best) >= max(1, speedup(problem, baseline))


def test_rewards_tell_latencies() -> None:
    problem = instance("ppo_step")
    game = Game(flat(problem))
    mappings: list[Solution] = []
    for k in range(30):
        random = Random(k)
        game.reset()
        game.play([random.choice([1, 2] if random.random() < k / 30 else [2]) for _ in range(250)])
        mappings.append(game.solution())
    assert -1 <= correlation(problem, mappings) < -0.9
    assert correlation(problem, mappings[:1] * 3) != correlation(problem, mappings[:1] * 3)  # NaN
