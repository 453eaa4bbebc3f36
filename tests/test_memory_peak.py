"""The peak of a program: predicted before it runs, for any bounds, and what is measured of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given

import recurra as rc
from numpy_memory import counted
from program_checks import compiled
from random_programs import Case, programs
from recurra.errors import PlanError, RecurraError
from recurra.executable import Executable
from recurra.footprint.run import footprint
from recurra.memory.amount import Amount, Extent, amount_of, extents, made, most, parse, rounded_up
from recurra.memory.budget import expect_room, fitting
from test_examples import program, scope
from test_random_programs import QUICK

# Sizes of a second or so, whose numbers are many enough that Python's own do not count.
SIZES: dict[str, dict[str, int]] = {
    "attention_patterns": {"B": 4, "T": 50},
    "bptt_rnn": {"B": 256, "I": 3, "T": 20},
    "diffusion": {"B": 2000, "T": 20},
    "edit_distance": {"B": 64, "I": 40, "J": 50},
    "kalman_filter": {"B": 200, "T": 20},
    "linear_attention": {"B": 64, "T": 50},
    "newton": {"B": 1000},
    "ppo": {"B": 16, "I": 2, "E": 2, "M": 4, "N": 128, "T": 32},
    "reinforce": {"B": 64, "I": 2, "T": 30},
    "state_space": {"B": 64, "T": 100},
    "td_lambda": {"B": 500, "T": 60},
    "windowed_average": {"B": 64, "T": 500},
}


def example(name: str, backend: str) -> Executable:
    of = scope(name)
    if name != "newton":
        return program(of, backend, **SIZES[name])
    return of["ctx"].compile({of["B"]: SIZES[name]["B"], of["T"]: of["converged"]}, backend=backend)


@pytest.mark.parametrize("name", sorted(SIZES))
def test_numpy_allocates_what_is_predicted(name: str) -> None:
    p = example(name, "numpy")
    p.run(seed=0)  # what is made once for all runs
    with counted() as count:
        p.run(seed=1)
    assert p.memory.nbytes == pytest.approx(count.peak, rel=0.05)
