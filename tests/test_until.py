"""Bounds that the data set: each row is what a program of its own length would make of it."""

from __future__ import annotations

import numpy as np
import pytest

from random_rows import MOST, ROWS, Rows, write
from recurra import interp
from recurra.lang.safety import check
from recurra.rewrite.until import Ending, end_rows


def expected(rows: Rows, sums: Rows, first: int) -> dict[str, np.ndarray]:
    """From every row alone, at its own length."""
    lengths = rows.lengths(first)
    alone = [sums.alone(b, int(n)) for b, n in enumerate(lengths)]
    names = list(sums.names)
    found = {n: [r[sums.names[n]] for r in alone] for n in names}
    out = {n: sum(xs) / lengths.sum() for n, xs in found.items() if n in ("loss", "d_w")}
    out["y"] = np.stack([np.pad(y[0], (0, MOST - len(y[0]))) for y in found["y"]])
    for n in ("last", "long"):
        out[n] = np.concatenate(found[n])
    return out


def ended(rows: Rows, first: int):
    check(rows.graph, {"B": ROWS}, {"T": MOST})
    return end_rows(rows.graph, "T", Ending("done", first, MOST))


@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_what_it_is_alone(seed: int) -> None:
    rows, sums = write(seed, mean=True), write(seed, mean=False)
    first = seed % 3
    graph = ended(rows, first)
    inputs = {n: x for n, x in rows.inputs.items() if n in graph.nodes}
    with np.errstate(all="ignore"):  # past their end rows hold anything
        got = interp.run(graph, {"B": ROWS}, inputs)
    by_name = dict(zip(rows.graph.outputs, graph.outputs, strict=True))
    want = expected(rows, sums, first)
    assert want.keys() == rows.names.keys()
    for name, x in want.items():
        have = got[by_name[rows.names[name]]]
        np.testing.assert_allclose(have, x, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("seed", range(0, 60, 2))
@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_backends(seed: int, backend: str) -> None:
    rows, sums = write(seed, mean=True), write(seed, mean=False)
    program = rows.compile(seed % 3, backend=backend)
    mine = {n: x for n, x in rows.inputs.items() if n in program.source_graph.nodes}
    with np.errstate(all="ignore"):
        got = program.run(inputs=mine)
    for name, x in expected(rows, sums, seed % 3).items():
        np.testing.assert_allclose(got[name], x, rtol=2e-4, atol=2e-5, err_msg=name)
