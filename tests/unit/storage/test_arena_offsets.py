"""The arena: what is alive at once lies apart, point by point; no other packing is smaller."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from recurra.mapping import engine_choice
from recurra.mapping.solvers import solver_of
from recurra.storage import arena_offsets as module
from recurra.storage.arena import Arena, LiveRange
from recurra.storage.arena_offsets import ALIGNMENT, allocate, conflicts
from recurra.storage.mapping_problem import Problem, ProblemError, Solution, nothing
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.verifier import validate

randoms = st.integers(0, 2**32).map(Random)
PYTHON = engine_choice.engine("python")


def pack(problem: Problem) -> Solution:
    return solver_of("pack")(problem, 2, 0, None, PYTHON)


def phases() -> rc.Executable:
    """Forwards, backwards, forwards again: what the first keeps is not needed by the last."""
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        w = rc.nn.Parameter(rc.constant(0.9), domain=(i,), name="w")
        x = rc.like(rc.f32[8], domain=(i, t))
        x[i, 0] = 1.0
        x[i, t + 1] = (w * x).tanh()
        y = rc.like(rc.f32[8], domain=(i, t))
        y[i, T - 1] = x[i, T - 1]
        y[i, t - 1] = (y * x[i, t - 1]).sin()
        z = rc.like(rc.f32[8], domain=(i, t))
        z[i, 0] = y[i, 0]
        z[i, t + 1] = (z + y[i, T - 1 - t]).tanh()
        u = rc.like(rc.f32[8], domain=(i, t))
        u[i, T - 1] = z[i, T - 1]
        u[i, t - 1] = (u * z[i, t - 1]).sin()
        loss = u[i, 0].sum()
        rc.log(loss=loss)
    return ctx.compile({I: 3, T: 6})


def plan_of(lives: list[LiveRange], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "live_ranges", lambda _: tuple(lives))


def test_stores_share_what_none_of_them_needs_any_more() -> None:
    program = phases()
    for arena in (program.arena(), program.arena(pack)):
        assert validate(program.compiled.plan, arena) == []
        assert arena.load <= arena.nbytes < arena.unshared_bytes
    assert "memory as one arena" in program._repr_html_()


def test_a_wrong_address_is_found() -> None:
    program = phases()
    arena = program.arena()
    together = replace(arena, offsets=(0,) * len(arena.offsets))
    assert "its slot holds" in validate(program.compiled.plan, together)[0]
    assert "overlap" in conflicts(together)[0]
    assert "leaves the arena" in conflicts(replace(arena, nbytes=ALIGNMENT))[0]


@settings(max_examples=60, deadline=None)
@given(randoms)
def test_no_other_packing_is_smaller(random: Random) -> None:
    found: list[LiveRange] = []
    for k in range(random.randint(1, 4)):
        first = random.randint(0, 3)
        size = ALIGNMENT * random.randint(1, 2)
        found.append(LiveRange(f"s{k}", size, first, first + random.randint(0, 3)))
    with pytest.MonkeyPatch.context() as patch:
        plan_of(found, patch)
        greedy, packed = allocate(NO_PLAN), allocate(NO_PLAN, pack, "pack")
    every = product(range(0, 8 * ALIGNMENT, ALIGNMENT), repeat=len(found))
    tops = (
        max(a + x.nbytes for a, x in zip(offsets, found, strict=True))
        for offsets in every
        if not conflicts(Arena(tuple(found), offsets, 2**40, 0, "all"))
    )
    assert packed.nbytes == min(tops) <= greedy.nbytes
    assert packed.load <= packed.nbytes
    assert not conflicts(packed)
    assert packed.by == "pack"
    assert packed.least


NO_PLAN: StoragePlan = None  # type: ignore[assignment]  # lives are given


def test_an_answer_that_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        LiveRange("a", 192, 0, 1),
        LiveRange("b", 128, 1, 3),
        LiveRange("c", 192, 3, 4),
        LiveRange("d", 128, 2, 3),
    ]
    found.append(LiveRange("e", 64, 0, 2))
    plan_of(found, monkeypatch)
    greedy = allocate(NO_PLAN)
    assert (greedy.load, greedy.by) == (448, "greedy")
    if greedy.nbytes > greedy.load:
        with pytest.raises(
            ProblemError, match=r"mine gave an arena that does not hold\n  .* overlap"
        ):
            allocate(NO_PLAN, all_at_zero, "mine")
    assert allocate(NO_PLAN, nothing, "mine") == greedy
    assert "0.0% lost" in str(greedy) or greedy.fragmentation > 0


def all_at_zero(problem: Problem) -> Solution:
    answer = pack(replace(problem, fast_size=2**20))
    return Solution(tuple(p and p._replace(offset=0) for p in answer.placements))
