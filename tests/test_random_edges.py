"""Programs as users write them, at their edges, give what the interpreter gives."""

from __future__ import annotations

import pytest

from everywhere import BACKENDS
from random_edges import compare

WENT_WRONG = (
    89,  # a loop of one step on the host, of what the step before would have left
    100747,  # conditions of gradients in so many cases that their boxes were never all written down
)


@pytest.mark.parametrize("seed", WENT_WRONG)
@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_that_went_wrong(seed: int, backend: str) -> None:
    compare(seed, backend)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 10):
        compare(seed, "numpy")


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.usefixtures("hasty_xla")
def test_random_programs_on_backends(backend: str) -> None:
    for seed in range(60, 66):
        compare(seed, backend)


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 4000, 100))
def test_many_random_programs(first: int) -> None:
    for seed in range(first, first + 100):
        compare(seed, "numpy")


@pytest.mark.fuzz
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("first", range(4000, 4400, 50))
def test_many_random_programs_on_backends(first: int, backend: str) -> None:
    for seed in range(first, first + 50):
        compare(seed, backend)
