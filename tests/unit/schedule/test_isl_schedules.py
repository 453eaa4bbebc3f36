"""isl's scheduler beside our own: what it finds is legal, plans hold, answers are the oracle's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import currently_in_test_context, given, note, settings
from test_schedules import ACT, innermost, learner, loops

import recurra as rc
from example_programs import EXAMPLES, scope
from program_checks import compiled, oracle
from random_cases import CASES, QUICK
from random_programs import Case, programs
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.errors import RecurraError, ScheduleError
from recurra.polyhedral import isl_schedules
from recurra.schedule import isl_scheduler
from recurra.storage.verifier import validate
from reinforce import GRADIENTS, reinforce


def refused(case: Case, axes: bool) -> bool:
    """Was isl's tree no nest of our loops? If it was, its answer is the oracle's."""
    try:
        compiled(case, NumpyBackend(), oracle(case), scheduler="isl", vectorized=axes)
    except ScheduleError as e:
        if e.what != "isl's schedule cannot be taken":
            raise
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("axes", [True, False])
def test_programs_that_went_wrong(axes: bool):
    every = [refused(p.values[0], axes) for p in CASES]
    assert sum(every) <= len(every) / 2


@pytest.mark.slow
def test_random_programs():
    """Most of them are scheduled, all of those rightly."""
    every: list[bool] = []

    @settings(QUICK, max_examples=20)
    @given(programs())
    def each(case: Case) -> None:
        if currently_in_test_context():
            note(str(case))
        every.append(refused(case, axes=len(every) % 2 == 0))

    each()
    assert sum(every) < len(every) / 3


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, None])
def test_reinforce(n: int | None):
    """Both schedulers: learning follows acting at a delay of n - 1, or in a loop of its own."""
    B, T, I = 2, 12, 3
    ours, theirs = (
        reinforce(B, T, I, n, shown=tuple(GRADIENTS), backend="numpy", scheduler=s)
        for s in ("own", "isl")
    )
    c = theirs.compiled
    assert validate(c.plan) == []
    acts = innermost(c, ACT)
    if n is not None:
        assert innermost(c, learner(c)) is acts
        assert acts.shift[learner(c)] - acts.shift[ACT] == n - 1
    else:
        assert innermost(c, learner(c)) is not acts
        assert {x.step for x in loops(c.schedule.items)} == {1, -1}
    want = ours.run()
    for name, x in theirs.run().items():
        np.testing.assert_allclose(x, want[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_edit_distance_and_a_scheduler_that_is_not_there():
    ctx = rc.Context(dims="s t")
    with ctx as ((s, S), (t, T)):
        d = rc.like(rc.f32[()], (s, t))
        d[s == 0] = rc.value(t)
        d[t == 0] = rc.value(s)
        d[s, t] = rc.minimum(rc.minimum(d[s - 1, t], d[s, t - 1]), d[s - 1, t - 1]) + 1.0
        rc.output(d=d)
    program = ctx.compile({S: 9, T: 9}, backend="numpy")
    isl_scheduler = ctx.compile({S: 9, T: 9}, backend="numpy", scheduler="isl")
    np.testing.assert_array_equal(isl_scheduler.run()["d"], program.run()["d"])
    with pytest.raises(RecurraError, match="there is no scheduler 'ilp'"):
        ctx.compile({S: 9, T: 9}, scheduler="ilp")


SMALL = {  # bounds of the examples; newton's T is what its data end
    "attention_patterns": {"B": 2, "T": 70},
    "big_observations": {"B": 2, "I": 2, "T": 6},
    "bptt_rnn": {"B": 4, "I": 3, "T": 7},
    "diffusion": {"B": 3, "T": 8},
    "edit_distance": {"B": 3, "I": 12, "J": 14},
    "kalman_filter": {"B": 2, "T": 6},
    "linear_attention": {"B": 2, "T": 6},
    "newton": {"B": 20},
    "reinforce": {"B": 2, "I": 2, "T": 12},
    "state_space": {"B": 2, "T": 9},
    "td_lambda": {"B": 2, "T": 40},
    "windowed_average": {"B": 2, "T": 12},
}


PPO = {"E": 3, "M": 2, "N": 12}  # which takes isl more than a second


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """isl schedules each of them, in a few seconds, and its answers are those of our schedule."""
    assert {*SMALL, "ppo"} == set(EXAMPLES)
    monkeypatch.chdir(tmp_path)  # where an example keeps its checkpoints
    of = scope(name)
    bounds = {of[k]: n for k, n in SMALL[name].items()}
    if name == "newton":
        bounds[of["T"]] = of["converged"]
    found = [
        of["ctx"].compile(bounds, backend="numpy", scheduler=s).run(seed=3) for s in ("own", "isl")
    ]
    for key, x in found[0].items():
        np.testing.assert_allclose(found[1][key], x, rtol=1e-4, atol=1e-5, err_msg=key)


def test_a_statement_inside_of_a_loop_that_it_has_no_dim_of_is_refused() -> None:
    """The first column of a table, made in the first turn of the loop over rows."""
    of = scope("edit_distance")
    bounds = {of["B"]: 3, of["I"]: 6, of["J"]: 7}
    with pytest.raises(ScheduleError, match="d_first would run in one turn of the loop over i"):
        of["ctx"].compile(bounds, backend="numpy", scheduler="isl")


@pytest.mark.slow
def test_it_gives_up_when_it_takes_too_long(monkeypatch: pytest.MonkeyPatch):
    """By the time of a processor, so that it is the same on a busy machine; once, and once more
    of fewer statements."""
    asked: list[int] = []
    real = isl_schedules.scheduled

    def counted(*given: Any) -> Any:
        asked.append(len(given[0]))
        return real(*given)

    monkeypatch.setattr(isl_scheduler, "MAX_ISL_SECONDS", 1)
    monkeypatch.setattr(isl_schedules, "scheduled", counted)
    of = scope("ppo")
    bounds = {of[k]: n for k, n in (*SMALL["reinforce"].items(), *PPO.items())}
    with pytest.raises(ScheduleError, match="isl takes more than 1 seconds for") as told:
        of["ctx"].compile(bounds, backend="numpy", scheduler="isl")
    assert "leave scheduler='isl' out" in str(told.value)
    assert len(asked) == 2
    assert asked[0] > 1.3 * asked[1]


def test_another_process_gives_the_schedule_or_says_that_there_is_none():
    domains = [(("t",), ("0 <= t < T",)), (("t",), ("0 <= t < T",))]
    ties = [(0, 1, ["0 <= t < T", "0 <= t' < T", "t' = t"])]
    assert isinstance(
        isl_schedules.scheduled(domains, ties, {"T": "T >= 8"}, 20), isl_schedules.Band
    )
    both = [*ties, (1, 0, ["t' = t"])]
    with pytest.raises(ValueError, match="isl finds none"):
        isl_schedules.scheduled(domains, both, {"T": "T >= 8"}, 20)
