"""Random programs through the whole compiler, and those that once went wrong.

`tests/programs/*.txt` hold one program each between lines of ---: why it is there, its sizes and
its graph.
"""

from __future__ import annotations

import jax
import pytest
from hypothesis import currently_in_test_context, given, note, settings
from hypothesis import strategies as st

from fuzzing import drawn_at_length
from program_checks import PASSES, PIPELINE, compiled, examine, oracle, passes
from random_cases import CASES, QUICK
from random_programs import Case, programs
from recurra.backends.jax.region import JaxBackend

ORDERS = st.lists(st.sampled_from(sorted(PASSES)), min_size=1, max_size=5)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_program_that_went_wrong(case: Case):
    want = oracle(case)
    for order in (
        PIPELINE,
        ("last", "reductions_to_accumulators"),
        ("first", "canonicalize"),
        ("reductions_to_accumulators",),
    ):
        passes(case, order, want)
    examine(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[::4])
def test_a_program_that_went_wrong_on_jax(case: Case):
    on_jax(case, axes=True)


def keeps(case: Case, order: list[str]) -> None:
    if currently_in_test_context():
        note(str(case))
    want = oracle(case)
    passes(case, PIPELINE, want)
    passes(case, order, want)


def on_numpy(case: Case) -> None:
    if currently_in_test_context():
        note(str(case))
    examine(case)


def on_jax(case: Case, axes: bool) -> None:
    if currently_in_test_context():
        note(str(case))
    with jax.enable_x64(True):
        compiled(case, JaxBackend(), oracle(case), launch_steps=2, vectorized=axes)


@pytest.mark.slow
@QUICK
@given(programs(), ORDERS)
def test_passes_keep_the_answer(case: Case, order: list[str]):
    keeps(case, order)


@pytest.mark.slow
@QUICK
@given(programs())
def test_programs_agree_with_the_oracle(case: Case):
    on_numpy(case)


@pytest.mark.slow
@settings(QUICK, max_examples=6)
@given(programs(), st.booleans())
def test_programs_agree_with_the_oracle_on_jax(case: Case, axes: bool):
    on_jax(case, axes)


@drawn_at_length()
@given(programs(), ORDERS)
def test_passes_keep_the_answer_long(case: Case, order: list[str]):
    keeps(case, order)


@drawn_at_length()
@given(programs())
def test_programs_agree_with_the_oracle_long(case: Case):
    on_numpy(case)


@drawn_at_length(0.1)
@given(programs(), st.booleans())
def test_programs_agree_with_the_oracle_on_jax_long(case: Case, axes: bool):
    on_jax(case, axes)
