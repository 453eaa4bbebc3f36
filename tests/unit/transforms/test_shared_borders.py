"""Shifts of one array as parts of one that is longer: the same numbers, fewer concatenations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recurra as rc
from random_cases import QUICK
from recurra.ops.movement import Concat
from recurra.reference import interpreter

WRAPPED: Callable[[Any, int, Any], Any] = lambda i, k, n: (i + max(min(k, 1), -1)) % n  # noqa: E731
HELD: Callable[[Any, int, Any], Any] = lambda i, k, n: rc.min(rc.max(i + k, 0), n - 1)  # noqa: E731
SIDES = {"wrapped": WRAPPED, "held": HELD}


def stencil(
    offsets: list[tuple[int, int]], sides: tuple[str, str], shape: tuple[int, int], **options: Any
) -> rc.Executable:
    """Every cell is made of itself and of its neighbors at some offsets, for three steps."""
    ctx = rc.Context(num_dims=3)
    with ctx as ((t, steps), (i, rows), (j, columns)):
        start = rc.input(rc.f32, (i, j), name="start")
        u = rc.like(rc.f32, (t, i, j), name="u")
        u[0, i, j] = start
        at = [u[t, SIDES[sides[0]](i, a, rows), SIDES[sides[1]](j, b, columns)] for a, b in offsets]
        u[t + 1, i, j] = sum((k + 1.0) * x for k, x in enumerate(at)).tanh() + u[t, i, j] * 0.5
        rc.output(u=u)
    return ctx.compile({steps: 3, rows: shape[0], columns: shape[1]}, **options)


def agrees(program: rc.Executable, shape: tuple[int, int]) -> None:
    start = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    want = interpreter.run(program.source_graph, program.sizes, {"start": start})
    got = program.run(inputs={"start": start})["u"]
    np.testing.assert_allclose(got, want[program.logs["u"]], rtol=2e-5, atol=1e-6)


def concatenations(program: rc.Executable) -> int:
    graph = program.compiled.plan.graph
    return sum(isinstance(n.op, Concat) for n in graph.nodes.values())


AROUND = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("sides", [("wrapped", "wrapped"), ("held", "wrapped")])
def test_eight_neighbors_are_parts_of_one_array(backend: str, sides: tuple[str, str]) -> None:
    program = stencil(AROUND, sides, (5, 6), backend=backend)
    agrees(program, (5, 6))
    assert concatenations(program) == 2  # one for each axis


def test_a_single_shift_stays_as_it_is() -> None:
    program = stencil([(1, 0)], ("wrapped", "wrapped"), (4, 4), backend="numpy")
    agrees(program, (4, 4))
    assert "shifts are parts" not in str(program.compiled.stages.decisions)


OFFSETS = st.tuples(st.integers(-2, 2), st.integers(-2, 2))


@settings(QUICK, max_examples=25)
@given(
    st.lists(OFFSETS, min_size=1, max_size=5, unique=True),
    st.tuples(st.sampled_from(sorted(SIDES)), st.sampled_from(sorted(SIDES))),
    st.tuples(st.integers(2, 5), st.integers(2, 5)),
)
def test_random_stencils(
    offsets: list[tuple[int, int]], sides: tuple[str, str], shape: tuple[int, int]
) -> None:
    agrees(stencil(offsets, sides, shape, backend="numpy"), shape)
