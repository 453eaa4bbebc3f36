"""The peak of a program: predicted before it runs, for any bounds, and what is measured of it."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import recurra as rc
from backend_memory import on_jax, on_torch
from documents import env
from example_programs import PEAK_SIZES, one_and_two, program, scope
from numpy_memory import counted
from page_reader import read
from random_cases import QUICK
from random_programs import Case, programs
from recurra.backends.numpy.numpy_backend import NumpyBackend
from recurra.compiler.pipeline import compile_graph
from recurra.errors import PlanError, RecurraError
from recurra.memory_model.amount import Amount, Extent, amount_of, extents, maximal, sum_of_terms
from recurra.memory_model.budget import expect_room, fitting
from recurra.memory_model.host_run import footprint
from recurra.report.memory_over_time import over_time
from recurra.runtime.executable import Executable
from recurra.runtime.host_executor import Execution
from recurra.support.byte_units import parse, rounded_up


@cache
def example(name: str, backend: str) -> Executable:
    of = scope(name)
    if name != "newton":
        return program(of, backend, **PEAK_SIZES[name])
    return of["ctx"].compile(
        {of["B"]: PEAK_SIZES[name]["B"], of["T"]: of["converged"]}, backend=backend
    )


@pytest.mark.slow
@pytest.mark.usefixtures("kept_environments")
@pytest.mark.parametrize("name", sorted(PEAK_SIZES))
def test_numpy_allocates_what_is_predicted(name: str) -> None:
    p = example(name, "numpy")
    p.run(seed=0)  # what is made once for all runs
    with counted() as count:
        p.run(seed=1)
    assert p.memory.nbytes == pytest.approx(count.peak, rel=0.05)


ON_OTHERS = ("diffusion", "edit_distance", "kalman_filter", "newton", "td_lambda")


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_OTHERS)
def test_torch_allocates_what_is_predicted(name: str) -> None:
    p = example(name, "torch")
    p.run(seed=0)
    assert p.memory.nbytes == pytest.approx(on_torch(p), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_OTHERS)
def test_jax_holds_what_is_predicted(name: str) -> None:
    p = example(name, "jax")
    p.run(seed=0)
    assert p.memory.nbytes == pytest.approx(on_jax(p), rel=0.05)


@pytest.mark.slow
@QUICK
@given(programs())
def test_random_programs_allocate_what_is_predicted(case: Case) -> None:
    """At sizes at which loops are longer than what is run of them to predict."""
    sizes = {k: n + 5 for k, n in case.sizes.items()}
    try:
        found = compile_graph(case.graph, sizes).program
    except RecurraError:  # it reads outside of what is there at these sizes
        return
    peak, every = footprint(found), footprint(found, steps=range)
    assert (peak.nbytes, peak.by_kind) == (every.nbytes, every.by_kind)
    assert peak.of() == peak.nbytes == sum(h.nbytes for h in peak.held)
    assert peak.nbytes == max(x.at(peak.sizes) for x in peak.amounts)
    backend: Any = NumpyBackend()
    run = Execution(found, backend)
    whole(run)
    with counted() as count:
        whole(run)
    assert count.peak <= 1.05 * peak.nbytes + 128  # numbers are no arrays
    assert peak.nbytes <= 1.3 * count.peak + 256  # what is known at compile time is never made


def whole(run: Execution) -> None:
    step = None
    for step in run.steps(0, watched=False):  # noqa: B007, who runs it holds what it gave last
        pass
    del step


OTHER = {
    "bptt_rnn": {"B": 40, "I": 7, "T": 31},
    "diffusion": {"B": 300, "T": 50},
    "kalman_filter": {"B": 77, "T": 18},  # launched in as many pieces
    "state_space": {"B": 9, "T": 200},
    "td_lambda": {"B": 64, "T": 100},
}


@pytest.mark.parametrize("name", sorted(OTHER))
def test_the_peak_for_other_bounds_is_that_of_the_program_for_them(name: str) -> None:
    told, made = example(name, "numpy").memory, program(scope(name), "numpy", **OTHER[name]).memory
    assert told.of(**OTHER[name]) == pytest.approx(made.nbytes, rel=0.05)
    assert told.of() == told.nbytes != made.nbytes


def test_what_is_told_of_a_peak() -> None:
    p = example("bptt_rnn", "numpy")
    told = str(p.memory)
    assert "h: 64·B·T  (stores)" in told
    assert f"peak {p.memory.nbytes:,} B" in told
    assert sum(p.memory.by_kind.values()) == p.memory.nbytes
    assert p.memory.amount.at(p.sizes) == p.memory.nbytes
    assert "64·B·T" in p.memory._repr_html_()  # pyright: ignore[reportPrivateUsage]


# ---- budgets


@pytest.mark.slow
def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "recurra.runtime.memory_budget.offload_candidates", lambda *_: []
    )  # in memory alone
    of = scope("bptt_rnn")
    bounds = {of[k]: n for k, n in PEAK_SIZES["bptt_rnn"].items()}
    peak = example("bptt_rnn", "numpy").memory
    with pytest.raises(PlanError) as e:
        of["ctx"].compile(bounds, backend="numpy", memory="512KiB")
    told = str(e.value)
    assert f"{peak.nbytes:,} bytes at its peak, {peak.nbytes - (512 << 10):,} more" in told
    assert "the largest are" in told
    assert "test_memory_peak.py" in told
    for hint in ("B: ", "T: "):
        fits = int(told.split(hint)[-1].split()[0])
        bound = hint[0]
        assert peak.of(**{bound: fits}) <= 512 << 10 < peak.of(**{bound: fits + 1})
        smaller = {**PEAK_SIZES["bptt_rnn"], bound: fits}
        program(of, "numpy", **smaller)
        of["ctx"].compile({of[k]: n for k, n in smaller.items()}, backend="numpy", memory=512 << 10)
    least = told.split('memory="')[-1].split('"')[0]
    assert of["ctx"].compile(bounds, backend="numpy", memory=least).memory.nbytes == peak.nbytes


def test_parameters_that_do_not_fit_are_named() -> None:
    p = example("reinforce", "numpy").memory
    with pytest.raises(PlanError, match="parameters, inputs and outputs alone take"):
        expect_room(p, 1000)
    assert fitting(p, "I", 1000) == 0


def test_amounts_of_memory() -> None:
    for wrong in ("2 GiBs", "", "-1", "3 XB", -5, 1.5, None, True):
        with pytest.raises(RecurraError, match="is no amount of memory"):
            parse(wrong)  # pyright: ignore[reportArgumentType]
    assert [parse(x) for x in ("5", 7, "64MiB", "1.5 KiB", "2GB", "1TiB")] == [
        5, 7, 64 << 20, 1536, 2 * 10**9, 1 << 40,
    ]  # fmt: skip
    for n in (0, 1, 1023, 1025, 5 << 20, (700 << 20) + 1, 123 << 30):
        assert n <= parse(rounded_up(n)) <= n * 1.01 + 1024


def test_extents_say_what_they_are_of() -> None:
    at = {"B": 6, "T": 10}
    e = extents(at)
    b, t = e["B"], e["T"]
    for n in (b * t * 4, 3 - b, t - b + 2, -(-t // 4) * 4, (b * 8) // 4, 2 * (b + 1) * (t - 1)):
        assert isinstance(n, Extent)
        for other in (at, {"B": 9, "T": 14}, {"B": 1, "T": 1}):
            B, T = other["B"], other["T"]
            same = {
                str(amount_of(b * t * 4)): B * T * 4,
                str(amount_of(3 - b)): 3 - B,
                str(amount_of(t - b + 2)): T - B + 2,
                str(amount_of(-(-t // 4) * 4)): -(-T // 4) * 4,
                str(amount_of((b * 8) // 4)): B * 2,
                str(amount_of(2 * (b + 1) * (t - 1))): 2 * (B + 1) * (T - 1),
            }
            assert amount_of(n).at(other) == same[str(amount_of(n))]
        assert amount_of(n).at(at) == n
    assert str(amount_of(b * t * 4 + 2048)) == "4·B·T + 2,048"
    x, y = sum_of_terms((("B",), 2), ((), 1)), sum_of_terms((("B",), 3))
    assert maximal([x, y, x, Amount()]) == (x, y)
    assert maximal([y, y + x, x]) == (y + x,)


# ---- what is told before the first step


def test_the_report_says_what_is_held_and_why(tmp_path: Path, capsys: Any) -> None:
    p = example("bptt_rnn", "numpy")
    p.run(folder=tmp_path)
    assert f"memory: peak {p.memory.nbytes:,} B" in capsys.readouterr().out
    page = read((tmp_path / "report.html").read_text()).text
    for word in ("einsum_9", "64·B·T", "could save", "parameters and state"):
        assert word in page
    told = p.preflight
    assert told is not None
    rows = {r["tensor"]: r for r in told["rows"] if r["kind"] == "stores"}
    assert rows["h"]["kept"] == "t: T of f32[16,B]"
    assert f"recompute, host, disk {p.memory.sizes['B'] * 64 * 19:,}" == rows["h"]["could save"]


def test_memory_over_time() -> None:
    names = {"a": "first <", "b": "second", "c": "none"}
    points = [{"at": f"x{k}", "a": 10, "b": 1000 - abs(700 - k)} for k in range(1200)]
    picture = read(over_time(names, points))
    assert "first <" in picture.text
    assert "none" not in picture.text
    assert "1010" in picture.text.replace(",", "")  # 1010 B at x700, which thinning has kept
    assert len(picture.attributes) < 8000
    assert over_time(names, []) == ""


def test_history_has_the_peak() -> None:
    peak = example("reinforce", "numpy").memory
    assert max(p.nbytes for p in peak.history) == peak.nbytes


@pytest.mark.slow
def test_of_several_workers_it_is_what_one_takes() -> None:
    one, two = one_and_two("numpy")
    assert two == pytest.approx(one, rel=0.05)
    code = "import example_programs; print(example_programs.one_and_two('jax'))"  # two devices
    theirs = env(JAX_PLATFORMS="cpu")
    out = subprocess.check_output([sys.executable, "-c", code], text=True, env=theirs)
    one, two = map(int, re.findall(r"\d+", out))
    assert two == pytest.approx(one, rel=0.05)


def test_a_call_that_is_not_made_at_first_has_a_peak() -> None:
    ctx = rc.Context(dims="i")
    with ctx as (i, I):
        x = rc.input(rc.f32[4], (i,), name="x")
        y = rc.like(rc.f32, (i,))
        y[i % 3 == 1] = rc.call(lambda v: v.sum(), rc.f32, x)
        y[i] = x.max()
        rc.output(y=y)
    peak = ctx.compile({I: 5}, backend="numpy").memory.nbytes
    given = np.arange(20, dtype=np.float32).reshape(5, 4)
    within = ctx.compile({I: 5}, backend="numpy", memory=peak).run(inputs={"x": given})
    assert within["y"].tolist() == [3, 22, 11, 15, 70]
