"""The best nest within a budget: what was begun with is never made worse, time is kept."""

from __future__ import annotations

import time

from recurra.nest import catalogue
from recurra.nest.actions import PAPER, Actions
from recurra.nest.default_schedule import tiles
from recurra.nest.loops import scheduled, untiled
from recurra.nest.measure import measure_in_turns, verify_kernel
from recurra.nest.quick_search import improve_nest
from recurra.nest.target import runnable

ON = runnable()[0]


def test_tiles_are_looked_at_first() -> None:
    p = catalogue.matmul(96, 96, 96)
    found = improve_nest(untiled(p), ON, seconds=0.05)
    verify_kernel(found, ON)
    ours, plain = measure_in_turns([found, untiled(p)], ON, rounds=5)
    assert ours.seconds < plain.seconds


def test_a_preset_is_kept_to() -> None:
    """Without tiles, splits are those of the actions."""
    p = catalogue.matmul(64, 64, 96)
    found = improve_nest(untiled(p), ON, seconds=0.1, actions=PAPER, tiled=False)
    assert not found.packs
    steps = [int(word.partition("/")[2]) for word in found.order.split() if "/" in word]
    assert all(step & (step - 1) == 0 for step in steps)  # products of 4, 8, 16


def test_without_time_it_is_what_was_begun_with() -> None:
    p = catalogue.matmul(16, 16, 32)
    begin = scheduled(p, "n/8 m/4 k m n")
    assert improve_nest(begin, ON, seconds=0.0) == begin
    assert len(list(tiles(p, ON))) > 1


def test_time_is_kept() -> None:
    p = catalogue.matmul(64, 64, 64)
    start = time.process_time()
    improve_nest(untiled(p), ON, seconds=0.2, actions=Actions())
    assert time.process_time() - start < 1.0
