"""What the caller gives lies as he gives it, whatever the compiler makes of its dims."""

from __future__ import annotations

import runpy
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest

from documents import ROOT
from everywhere import BACKENDS
from given_inputs import Given, with_inputs

SIZES: dict[str, dict[str, int]] = {
    "attention_patterns": {"B": 2, "T": 12},
    "big_observations": {"B": 2, "I": 2, "T": 8},
    "bptt_rnn": {"B": 2, "I": 2, "T": 8},
    "diffusion": {"B": 8, "T": 6},
    "edit_distance": {"B": 2, "I": 4, "J": 8},
    "kalman_filter": {"B": 2, "T": 8},
    "linear_attention": {"B": 2, "T": 12},
    "newton": {"B": 8},
    "ppo": {"B": 2, "I": 2, "E": 2, "M": 2, "N": 4, "T": 4},
    "reinforce": {"B": 2, "I": 2, "T": 8},
    "state_space": {"B": 2, "T": 12},
    "td_lambda": {"B": 2, "T": 12},
    "windowed_average": {"B": 2, "T": 12},
}


@cache
def example(name: str) -> Given:
    gymnasium.registry.pop("LakeFromAbove-v0", None)  # of an example that has run before
    found = runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="example")
    bounds: dict[Any, Any] = {found[k]: n for k, n in SIZES[name].items()}
    if name == "newton":
        bounds[found["T"]] = found["converged"]
    return with_inputs(found["ctx"], bounds)


def test_every_example_is_there() -> None:
    assert set(SIZES) == {p.stem for p in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.usefixtures("hasty_xla")
def test_examples_are_given_their_data(name: str, backend: str) -> None:
    """In tiles of a few points, of which each loop has several."""
    e = example(name)
    assert e.inputs
    program = e.compiled(backend=backend, rows=4, strip=4)
    got = program.run(inputs=e.inputs)
    assert set(program.inputs) == set(e.inputs)
    for key, want in e.want.items():
        np.testing.assert_allclose(got[key], want, rtol=2e-4, atol=2e-4, err_msg=key)
