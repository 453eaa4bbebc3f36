"""The bench's peers compute what ours do; how rows are put together. Nothing is timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import Row
from benchmarks.nest import policy, roofline
from benchmarks.nest import suite as bench
from benchmarks.nest.peers import inputs_of, peers
from benchmarks.nest.peers_tvm import blocks
from recurra.errors import RecurraError
from recurra.nest import catalogue
from recurra.nest.loops import Nest
from recurra.nest.problem import NestProblem
from recurra.nest.reference import evaluate
from recurra.nest.target import runnable

KINDS = [
    ("matmul", catalogue.matmul(5, 6, 7), {}, 3),
    ("matvec", catalogue.matvec(5, 6), {}, 3),
    ("convolution", catalogue.convolution(1, 4, 5, 3, 6), {}, 2),
    ("convolution", catalogue.convolution(1, 4, 5, 3, 6, stride=2), {"stride": 2}, 2),
    ("depthwise", catalogue.depthwise(1, 4, 5, 8), {}, 2),
    ("pooling", catalogue.max_pooling(4, 5, 8), {"window": 2}, 3),
    ("reduction", catalogue.reduction(4, 9), {}, 3),
    ("transposition", catalogue.transposition(4, 9), {}, 3),
    ("bf16 matmul", catalogue.matmul(5, 6, 7, dtype="bf16"), {}, 3),
]


@pytest.mark.parametrize(("kind", "p", "options", "count"), KINDS, ids=lambda x: str(x)[:12])
def test_peers_compute_the_same(
    kind: str, p: NestProblem, options: Mapping[str, int], count: int
) -> None:
    inputs = inputs_of(p)
    want = np.zeros(p.output.shape)
    evaluate(p, inputs, want)
    found = peers(kind, inputs, options)
    assert len(found) == count
    for peer in found:
        peer.run(1)
        rtol, atol = (1e-2, 2e-2) if kind.startswith("bf16") else (1e-4, 1e-5)
        np.testing.assert_allclose(peer.answer()["C"], want, rtol=rtol, atol=atol)


def test_every_kernel_has_peers() -> None:
    assert {kind for kind, _, _ in bench.KERNELS} <= {kind for kind, *_ in KINDS}
    assert all(k < len(bench.KERNELS) for k in bench.QUICK_KERNELS)


def test_parts_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int | None]] = []

    def part(function: Any, **arguments: Any) -> list[Row]:
        asked.append((function.__name__, len(arguments["sizes"]) if "sizes" in arguments else None))
        return [Row("a", "call_ms", 1, "numpy", 2, 2, (2, 2), None, "exact")]

    monkeypatch.setattr(bench, "_part", part)
    rows = bench.suite(only="matmul,compile", sizes="12")
    assert asked == [("matmuls", 10), ("matmuls", 2), ("compile_times", None)]
    assert [row.case for row in rows] == ["a", "a", "matmul, geometric mean of 2 sizes", "a"]
    asked.clear()
    bench.suite(only="matmul", sizes="5..12")
    assert asked == [("matmuls", 7)]
    for words in ("0", "12..5", "2198", "some"):
        with pytest.raises(RecurraError, match=f"needs 1 to 2197 sizes\n  --sizes {words}"):
            bench.suite(only="matmul", sizes=words)
    with pytest.raises(RecurraError, match="the bench nest has no part speed"):
        bench.suite(only="speed")
    asked.clear()
    bench.suite(quick=True)
    assert len({name for name, _ in asked}) == len(bench.PARTS)


def test_means_are_geometric() -> None:
    def row(case: str, ours: float, ratio: float) -> Row:
        return Row(case, "call_ms", ours, "numpy", ours * ratio, ratio, (1, 1), None, "exact")

    (mean,) = bench.means([row("a", 1.0, 0.5), row("b", 4.0, 2.0)])
    assert mean.case == "matmul, geometric mean of 2 sizes"
    assert (mean.ours, mean.ratio) == (pytest.approx(2.0), pytest.approx(1.0))
    assert mean.ci95 == (pytest.approx(0.5), pytest.approx(2.0))


def test_the_policy_is_summed_up() -> None:
    def row(size: str, ratio: float) -> Row:
        return Row(size, "gflops", ratio * 100, "oracle", 100, ratio, (ratio, ratio), 110, "exact")

    found = policy._median([row("a", 0.9), row("b", 1.0), row("c", 0.2)])
    assert (found.case, found.ratio) == ("policy alone, median of 3 sizes held out", 0.9)
    assert found.ci95 == (0.2, 1.0)
    took = policy._time([2.0, 4.0, 10.0], runnable()[0])
    assert (took.ours, took.ratio, took.ci95) == (4.0, 5.0, (2.0, 10.0))


def test_random_nests_are_checked() -> None:
    nests = list(roofline.random_nests(runnable()[0], 3))
    assert len(nests) == 3
    assert all(isinstance(nest, Nest) for nest in nests)


def test_blocks_of_tvm_divide_the_sizes() -> None:
    assert blocks(80, 240, 16, 28) == [(20, 16), (8, 48)]
    assert blocks(96, 96, 8, 12) == [(12, 8), (6, 16), (4, 24), (3, 32)]
    for m, n in ((64, 64), (176, 208), (256, 256)):
        for lanes, room in ((16, 28), (8, 12)):
            for rows, columns in blocks(m, n, lanes, room):
                assert m % rows == n % columns == columns % lanes == 0
                assert rows * columns // lanes <= room
