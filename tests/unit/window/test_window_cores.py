"""The probe of what two cores do at once: counts per second, by a clock that is made up."""

from __future__ import annotations

import os

import pytest

from benchmarks.window import cores
from benchmarks.window.cores import WORKS, rate, together_over_alone


def test_calls_per_second() -> None:
    now = [0.0]

    def once() -> None:
        now[0] += 0.25

    assert rate(once, 1.0, lambda: now[0]) == pytest.approx(4.0)
    now[0] = 100.0
    assert rate(once, 0.3, lambda: now[0]) == pytest.approx(4.0)  # the last call is not cut off


def test_the_ratio_is_of_both_together_over_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores that slow each other by a quarter, one of them half as fast as the other."""

    def rates(pipes: list[object]) -> list[float]:
        alone = {1: [10.0], 2: [10.0, 5.0]}[len(pipes)]
        return alone if len(pipes) == 1 else [0.75 * x for x in alone]

    monkeypatch.setattr(cores, "_rates", rates)
    core = min(os.sched_getaffinity(0))
    found = together_over_alone("counting in Python", [core, core], 3)
    assert found == pytest.approx([0.75 * 15 / 10] * 3)


def test_two_processes_answer() -> None:
    core = min(os.sched_getaffinity(0))
    found = together_over_alone("counting in Python", [core, core], 1)
    assert found.shape == (1,)
    assert found[0] > 0


@pytest.mark.parametrize("name", WORKS)
def test_every_work_can_be_repeated(name: str) -> None:
    once = WORKS[name]()
    once()
    once()
