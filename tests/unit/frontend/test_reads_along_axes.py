"""A point that is an expression of a dim is read along its axis: clamped, backwards, by halves."""

from __future__ import annotations

from typing import Any

import pytest

import recurra as rc
from everywhere import BACKENDS, expect_interpreted


def program(read: str, loop: bool) -> tuple[rc.Context, dict[Any, int]]:
    """y[i] reads x at a point of i, where x varies with i alone or is kept for every step."""
    ctx = rc.Context(dims="t i")
    with ctx as ((t, T), (i, I)):
        x = rc.like(rc.f32, (t, i), name="x")
        x[0, i] = rc.value(i) * 0.5 + 1.0
        x[t, i] = x[t - 1, i] * 0.5 + (x[t - 1, I - 1 - i] if loop else 0.25)
        at = {
            "clamped below": rc.max(i - 2, 0),
            "clamped above": rc.min(i + 3, I - 1),
            "one below": rc.max(i - 1, 0),
            "one above": rc.min(i + 1, I - 1),
            "within": rc.max(rc.min(i, I - 2), 1),
            "past one end": rc.max(rc.min(i - 1, I - 2), 1),
            "held twice": rc.min(rc.max(rc.min(i + 1, I + 5), 0), I - 1),
            "backwards": I - 1 - i,
            "by halves": i // 2,
            "in turn": (i * 3) % 4,
        }[read]
        y = x[t, at] * 2.0
        rc.output(y=y, last=x[T - 1, at] + 1.0)
    return ctx, {T: 3, I: 7}


HELD = ("one below", "one above", "within")
READS = (
    "clamped below",
    "clamped above",
    *HELD,
    "past one end",
    "held twice",
    "backwards",
    "by halves",
    "in turn",
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("read", READS)
def test_reads_along_an_axis_are_those_of_the_interpreter(
    read: str, loop: bool, backend: str
) -> None:
    ctx, bounds = program(read, loop)
    expect_interpreted(ctx, bounds, backend)
    schedule = str(ctx.compile(bounds, backend=backend).compiled.schedule)
    assert "for i" not in schedule, schedule


@pytest.mark.parametrize("read", READS)
def test_ends_that_come_once_more_are_parts_of_the_axis(read: str) -> None:
    """No element is looked up by its number."""
    ctx, bounds = program(read, loop=False)
    equations = str(ctx.compile(bounds, backend="numpy").compiled.schedule.graph)
    assert (" take(" not in equations) == (read in HELD)
