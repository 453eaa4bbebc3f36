"""Programs as users write them, at their edges, give what the interpreter gives."""

from __future__ import annotations

import pytest

from everywhere import BACKENDS
from fuzzing import each, seeded_at_length
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


@seeded_at_length()
def test_many_random_programs(seeds: range) -> None:
    each(seeds, lambda seed: compare(seed, "numpy"))


@seeded_at_length(0.1)
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_many_random_programs_on_backends(seeds: range, backend: str) -> None:
    each(seeds, lambda seed: compare(seed, backend))
