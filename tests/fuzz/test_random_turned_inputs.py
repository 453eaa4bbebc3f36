"""Inputs that loops read across are turned, here however few their rows are: no answer changes."""

from __future__ import annotations

import pytest

from fuzzing import each, seeded_at_length
from random_edges import compare
from recurra.transforms.vectorize import turn_inputs


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_inputs, "MIN_VECTOR_ROWS", 2)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 140, 10))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 10):
        compare(seed, "numpy")


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.usefixtures("hasty_xla")
def test_random_programs_on_backends(backend: str) -> None:
    for seed in range(160, 164):
        compare(seed, backend)


@seeded_at_length()
def test_many_random_programs(seeds: range) -> None:
    each(seeds, lambda seed: compare(seed, "numpy"))
