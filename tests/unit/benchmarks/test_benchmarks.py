"""The suites: every program agrees with the form by hand at a small size; no time is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import benchmarks.host
import benchmarks.launch
import benchmarks.programs
from benchmarks.table import markdown
from benchmarks.workload import Workload, as_numpy, on_backend
from documents import ROOT

TOLERANCE = 1e-4  # of the largest number of an array


def expect_agreement(workload: Workload, backend: str, by_hand: str) -> None:
    """Both forms give the same arrays, by the same names, of the same types."""
    sizes = workload.sizes(small=True)
    arrays = workload.inputs(sizes)
    ours = workload.program(backend, sizes).run(inputs=on_backend(backend, arrays), native=True)
    theirs = workload.by_hand(by_hand, sizes)(**on_backend(by_hand, arrays))
    expect_close(as_numpy(ours), as_numpy(theirs))


def expect_close(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        y = theirs[name]
        assert (x.shape, x.dtype) == (y.shape, y.dtype), name
        largest = float(np.abs(y).max(initial=0.0))
        np.testing.assert_allclose(x, y, rtol=0.0, atol=TOLERANCE * largest, err_msg=name)


@pytest.mark.parametrize("backend", ["jax", "numpy", "torch"])
@pytest.mark.parametrize("name", benchmarks.launch.NAMES)
@pytest.mark.usefixtures("hasty_xla")
def test_a_program_of_launch_agrees_with_the_form_by_hand(name: str, backend: str) -> None:
    expect_agreement(Workload("launch", name), backend, backend)


@pytest.mark.slow
@pytest.mark.parametrize("name", benchmarks.programs.NAMES)
@pytest.mark.usefixtures("hasty_xla")
def test_a_program_from_a_paper_agrees_with_the_form_by_hand(name: str) -> None:
    expect_agreement(Workload("programs", name), "jax", "jax")


@pytest.mark.slow
@pytest.mark.parametrize("name", benchmarks.host.NAMES)
@pytest.mark.usefixtures("hasty_xla")
def test_both_forms_step_the_environment_as_often_as_asked(name: str) -> None:
    workload = Workload("host", name)
    sizes = workload.sizes(small=True)
    for run in (workload.program("jax", sizes).run, workload.by_hand("jax", sizes)):
        made = as_numpy(run(3))
        assert made["reward"].sum() == sizes["steps"]
        assert 1 <= made["ended"].sum() <= sizes["steps"] // 8
        assert made["reward"].shape == made["ended"].shape


@pytest.mark.parametrize("suite", ["host", "launch", "programs"])
def test_every_file_of_a_suite_is_in_its_list(suite: str) -> None:
    module = getattr(benchmarks, suite)
    files = {path.stem for path in (ROOT / "benchmarks" / suite).glob("*.py")}
    assert files - {"__init__", "suite"} == set(module.NAMES)


def test_a_table_has_columns_of_one_width() -> None:
    assert markdown(["a", "b"], [["long", ""]]) == "| a    | b |\n| ---- | - |\n| long |   |"
