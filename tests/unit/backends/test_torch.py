"""The Torch backend: generated code that agrees with the oracle."""

from __future__ import annotations

import pytest
from hypothesis import currently_in_test_context, given, note
from hypothesis import strategies as st

from fuzzing import drawn_at_length
from program_checks import compiled, oracle
from random_cases import CASES, QUICK
from random_programs import Case, programs
from recurra.backends.torch.region import TorchBackend


def on_torch(case: Case, axes: bool) -> None:
    if currently_in_test_context():
        note(str(case))
    want = oracle(case)
    compiled(case, TorchBackend(), want, launch_steps=2, vectorized=axes)


@pytest.mark.parametrize("axes", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_program_that_went_wrong(case: Case, axes: bool):
    on_torch(case, axes)


@pytest.mark.slow
@QUICK
@given(programs(), st.booleans())
def test_programs_agree_with_the_oracle(case: Case, axes: bool):
    on_torch(case, axes)


@drawn_at_length(0.2)
@given(programs(), st.booleans())
def test_programs_agree_with_the_oracle_long(case: Case, axes: bool):
    on_torch(case, axes)
