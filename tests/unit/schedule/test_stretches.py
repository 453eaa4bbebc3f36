"""A loop whose statements start and end at different times is launched in chunks all the same."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.codegen.host_program import ChunkLoop
from recurra.reference import interpreter
from recurra.report.runs import RunFolder
from recurra.runtime.host_executor import Step

LATE = 3  # y reads that far ahead, so it runs as many steps behind x


@cache
def program(backend: str, chunk: int | None, T: int = 21, back: bool = False) -> Any:
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T_),):
        x, y = (rc.like(rc.f32[()], domain=(t,)) for _ in "xy")
        first = rc.like(rc.f32[()], domain=(t,))
        if back:
            x[T_ - 1] = 1.0
            x[t] = x[t + 1] * 0.9 + rc.uniform((t,))
            y[T_ - 1] = 0.0
            y[t] = y[t + 1] * 0.5 + x[rc.max(t - LATE, 0)]
        else:
            x[0] = 1.0
            x[t] = x[t - 1] * 0.9 + rc.uniform((t,))
            y[0] = 0.0
            y[t] = y[t - 1] * 0.5 + x[rc.min(t + LATE, T_ - 1)]
        first[t < 2] = x * 3.0  # given once, read to the end
        first[t] = first[t - 1]
        rc.log(x=x, y=y, first=first)
        rc.output(last=y[T_ - 1] + x[0], wide=y.expand(2))
    return ctx.compile({T_: T}, backend=backend, launch_steps=chunk)


def oracle(p: Any) -> dict[str, Any]:
    found = interpreter.run(p.source_graph, p.sizes, seed=5)
    return {name: found[equation] for name, equation in p.logs.items()}


def same(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, x in got.items():
        np.testing.assert_allclose(x, want[name], rtol=1e-5, err_msg=name)


def stretches(p: Any) -> list[tuple[int, int, int]]:
    return [(x.lo, x.hi, x.size) for x in p.compiled.program.items if isinstance(x, ChunkLoop)]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_every_chunk_gives_what_the_oracle_gives(chunk: int, back: bool) -> None:
    p = program("numpy", chunk, back=back)
    assert len(stretches(p)) > 2
    assert all(size == chunk for _, _, size in stretches(p))
    same(p.run(seed=5), oracle(p))


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_backends(backend: str) -> None:
    p = program(backend, 4)
    same(p.run(seed=5), oracle(p))


def test_outputs_hold_one_chunk() -> None:
    p = program("numpy", 4)
    (kept,) = p.compiled.program.plan.stores[p.outputs[p.logs["wide"]]].kept
    assert (kept.kind, kept.slots) == ("circular", 4)


def test_one_launch_needs_no_stretches() -> None:
    assert stretches(program("numpy", None, T=5)) == []
    assert stretches(program("numpy", 64)) == []


@pytest.mark.parametrize("back", [False, True])
def test_metrics_are_told_once_and_at_their_points(back: bool) -> None:
    p, told = program("numpy", 4, back=back), {n: {} for n in ("x", "y", "first")}

    def hear(first: int, metrics: dict[str, Any]) -> None:
        for name, values in metrics.items():
            for k, value in enumerate(values):
                assert told[name].setdefault(first + k, value) is value

    p.run(seed=5, on_step=hear)
    want = oracle(p)
    for name, points in told.items():
        assert sorted(points) == list(range(21))
        np.testing.assert_allclose([points[k] for k in range(21)], want[name], rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 4])
def test_going_on_from_every_launch_is_the_run_itself(chunk: int) -> None:
    p = program("numpy", chunk)
    states: list[Step] = []
    whole = p.run(seed=5, on_state=states.append)
    assert states[-1].hi == 21 + LATE
    for s in states:
        saved = {n: np.array(x) for n, x in s.variables.items()}
        rest = p.run(seed=5, resume=(s.hi, saved))
        for name, x in rest.items():
            tail = whole[name][len(whole[name]) - len(x) :] if x.ndim else whole[name]
            np.testing.assert_array_equal(x, tail, err_msg=f"{name} from {s.hi} on")


def test_rows_of_a_run(tmp_path: Any) -> None:
    p = program("numpy", 4)
    p.run(seed=5, folder=tmp_path)
    rows, want = RunFolder(tmp_path).rows(), oracle(p)
    for name in ("x", "y", "first"):
        found = {r["step"]: r[name] for r in rows if name in r}
        np.testing.assert_allclose([found[k + 1] for k in range(21)], want[name], rtol=1e-5)
