"""Samples are counted as they lie: nothing is moved, and they are the same."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest

from recurra.ir.graph import Graph
from recurra.ir.graph_parser import parse
from recurra.ir.verify import verify
from recurra.reference import interpreter
from recurra.transforms.permutations.gathers import number_by_layout

SIZES = {"T": 4, "N": 7}
TEXT = """dims t<T, n<N
o[t<T]: f32[{row}] = uniform(id=1, counter=(t,), shape=({row},))
moved: f32[{moved}] = transpose(o[0:T], order={order})
flat: f32[{flat}] = reshape(moved, shape=({flat},))
k[n<N]: i32[] = permutation(id=2, size={count}, at_=n)
x[n<N]: f32[{rest}] = take(flat, k, labels='{labels}', axis='a')
z[n<N]: f32[{rest}] = take(flat, k, labels='{labels}', axis='a')
return x, z"""


def samples(row: tuple[int, ...], order: tuple[int, ...], points: int) -> Graph:
    """Of o: [T, *row], as [*points, *rest] of its axes in `order`, the points flattened."""
    axes = ["T", *map(str, row)]
    moved = [axes[a] for a in order]
    known, rest = prod(int(a) for a in moved[:points] if a != "T"), moved[points:]
    count = f"{known}*T" if "T" in moved[:points] else str(known)
    letters = "abcd"[: 1 + len(rest)]
    return parse(
        TEXT.format(
            row=", ".join(axes[1:]),
            moved=",".join(moved),
            order=order,
            flat=", ".join([count, *rest]),
            count=count,
            rest=",".join(rest),
            labels=f"{letters},->{letters[1:]}",
        )
    )


def ops(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes.values()]


@pytest.mark.parametrize("row", [(3,), (3, 2), (2, 3, 2)])
@pytest.mark.parametrize("points", [2, 3])
def test_samples_are_the_same(row: tuple[int, ...], points: int) -> None:
    if points > len(row) + 1:
        points = 2
    for order in itertools.permutations(range(points)):
        graph = samples(row, (*order, *range(points, len(row) + 1)), points)
        made = verify(number_by_layout(graph))
        want, found = (interpreter.run(g, SIZES, seed=3) for g in (graph, made))
        for name in ("x", "z"):
            np.testing.assert_array_equal(found[name], want[name])
        assert "transpose" not in ops(made)
        assert ops(made).count("renumber") == 1  # both read the same numbers
        assert ops(made).count("reshape") == 1


def test_rows_in_pieces_are_moved() -> None:
    """The rows' own axes are moved: each would have to be put together."""
    graph = samples((3, 2), (2, 1, 0), 2)
    assert number_by_layout(graph) == graph
