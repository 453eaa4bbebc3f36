"""What compiling takes does not grow with the values of bounds: steps are counted, not timed."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from example_programs import TINY_SIZES, read_example
from recurra.compiler.bounds import bounded
from recurra.compiler.pipeline import compile_graph
from recurra.ir.graph import Graph
from recurra.polyhedral import boxes, dependence, isl

ASKED = [f for f in vars(isl).values() if hasattr(f, "cache_info")]
FOUND = [f for m in (boxes, dependence) for f in vars(m).values() if hasattr(f, "cache_info")]
LONG = {"T", "J"}  # bounds of the dims that become long
TIMES, MORE = 32, 100  # so long that each dim is a loop, and then a hundred times as long
FACTOR = 1.3


@dataclass(frozen=True)
class Steps:
    """Questions to isl, calls of Python functions, and the schedule with # for each number."""

    questions: int
    calls: int
    schedule: str


def counted(graph: Graph, sizes: Mapping[str, int]) -> Steps:
    """Compile, knowing nothing of what isl was asked, or what was found, before."""
    for f in (*ASKED, *FOUND):
        f.cache_clear()
    calls = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        made = compile_graph(graph, sizes)
    finally:
        sys.setprofile(None)
    questions = sum(f.cache_info().misses for f in ASKED)
    return Steps(questions, calls, re.sub(r"\d+", "#", str(made.schedule)))


def example(name: str, times: int) -> tuple[Graph, Mapping[str, int]]:
    """Its graph and bounds, of which the long ones are so many times as large."""
    found = read_example(name)
    sizes = {k: n * times if k in LONG else n for k, n in TINY_SIZES[name].items()}
    if {"N", "M"} <= sizes.keys():  # minibatches have all samples
        sizes["N"] = sizes["B"] * sizes["T"] // sizes["M"]
    given = bounded(found["ctx"].builder, {str(found[k]): n for k, n in sizes.items()})
    return given.graph, given.sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in TINY_SIZES if LONG & TINY_SIZES[n].keys()])
def test_a_hundred_times_as_long_takes_as_many_steps(name: str) -> None:
    few, many = (counted(*example(name, times)) for times in (TIMES, TIMES * MORE))
    assert many.calls <= FACTOR * few.calls
    assert many.questions <= FACTOR * few.questions
    if many.schedule == few.schedule:
        assert many.questions == few.questions
