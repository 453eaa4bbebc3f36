"""Kernels inside programs: XLA calls them where they win, answers stay, the report says it."""

from __future__ import annotations

import ctypes
import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra import nest
from recurra.backends.jax import nest_kernels
from recurra.backends.registry import backend_of
from recurra.errors import RecurraError
from recurra.nest import compiler_hook, kernel_store, problem
from recurra.nest.compiled import compile as compiled
from recurra.nest.compiler_hook import KernelChoice, KernelHandler, contraction
from recurra.nest.einsum import from_sizes as problem_of
from recurra.nest.loops import scheduled
from recurra.nest.target import runnable
from recurra.report.page import kernels
from recurra.support.notices import tell_once


def program(backend: Any) -> Any:
    """y[t+1] = tanh(y[t] W) from a matrix: 64 x 64 times 64 x 64 in a loop."""
    values = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        w = rc.constant(values)
        y = rc.like(rc.f32[64, 64], domain=(t,))
        y[t + 1] = rc.einsum("ab,bc->ac", y, w).tanh()
        y[0] = w
        rc.output(y=y)
    return ctx.compile({T: 4}, backend=backend)


DOORS = pytest.mark.parametrize("backend", ["jax+nest", "torch+nest"])


@DOORS
@pytest.mark.parametrize(("gain", "used"), [(0.0, True), (1e9, False)])
def test_answers_stay(
    backend: str, gain: float, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_hook, "GAIN", gain)
    monkeypatch.setattr(compiler_hook, "WHOLE", 0.0)
    ours = program(backend)
    found = ours.run()["y"]
    np.testing.assert_allclose(found, program("jax").run()["y"], rtol=1e-4, atol=1e-6)
    (row,) = ours.backend.contraction_rows
    assert row["contraction"] == "C[a,c] = sum(A[a,b] * B[b,c])"
    assert row["sizes"] == "a=64 b=64 c=64"
    assert row["used"] is used
    assert "sum(A[a,b] * B[b,c])" in ours._repr_html_()


@DOORS
def test_kernels_are_called(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel gives is what the program computes with: a wrong one is found out."""
    monkeypatch.setattr(compiler_hook, "GAIN", 0.0)
    monkeypatch.setattr(
        compiler_hook, "contraction",
        lambda labels, *layouts: compiled("ab,bc->ac", sizes=(64, 64, 64), post="negate"),
    )  # fmt: skip
    with pytest.raises(AssertionError, match="the kernel's answer is not"):
        program(backend).run()


@DOORS
def test_the_report_of_a_run_shows_them(
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(compiler_hook, "GAIN", 0.0)
    monkeypatch.setattr(compiler_hook, "WHOLE", 0.0)
    program(backend).run(folder=tmp_path)
    told = "1 of 1 by kernels of our own, each by itself "
    assert f"contractions: {told}" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert told in page
    assert "C[a,c] = sum(A[a,b] * B[b,c])" in page
    program("jax").run(folder=tmp_path / "plain")
    assert "contractions" not in capsys.readouterr().out
    assert "Contractions" not in (tmp_path / "plain" / "report.html").read_text()


def test_gains_are_told_in_words() -> None:
    rows = [dict(gain=g, used=g > 1.1) for g in (2.0, 1.0, 1.5)]
    assert kernels(rows) == (
        "2 of 3 by kernels of our own, each by itself 1.50 to 2.00 times as fast as the backend's"
    )
    assert kernels(rows[1:2]) == "0 of 1 by kernels of our own"
    assert kernels([]) == ""


def test_layouts_of_torch() -> None:
    """Views are what they are; what overlaps itself, or is not f32, is Torch's."""
    from recurra.backends.torch.nest_kernels import TunedTorch

    torch, backend = pytest.importorskip("torch"), TunedTorch(compiler_hook)
    a, b = (torch.randint(-4, 5, (64, 64)).float() for _ in "ab")
    for x, y in ((a, b), (a.T, b), (a, b.T), (a[::2], b), (a[:1].expand(64, 64), b)):
        assert torch.equal(backend.contract("ab,bc->ac", x, y), torch.einsum("ab,bc->ac", x, y))
    assert len(backend.choices) == 4
    assert len(backend.known) == 5
    backend.contract("ab,bc->ac", a.double(), b.double())
    assert len(backend.choices) == 4


@pytest.mark.parametrize(
    ("labels", "shapes", "there"),
    [
        ("ab,bc->ac", [(64, 64), (64, 64)], True),
        ("ab,bc->ca", [(64, 64), (64, 64)], True),
        ("zab,bc->zac", [(4, 64, 64), (64, 64)], True),
        ("Za,ZY->aY", [(64, 64), (64, 64)], True),
        ("ab,bc->ac", [(8, 8), (8, 8)], False),  # too little to do
        ("aab,bc->ac", [(64, 64, 64), (64, 64)], False),  # a diagonal
        ("ab,bc->abc", [(64, 64), (64, 64)], False),  # nothing is added up
    ],
)
def test_what_is_asked_for(labels: str, shapes: list[tuple[int, ...]], there: bool) -> None:
    assert (contraction(labels, shapes) is not None) == there


@DOORS
def test_programs_use_what_was_tuned(backend: str) -> None:
    """Whatever the letters of `recurra tune`, and whichever operand came first."""
    p = problem_of("yx,zy->zx", dict(x=64, y=64, z=64))
    on = str(runnable()[0])
    kernel_store.save(
        kernel_store.StoredNest(scheduled(p, "x/32 z/2 y z x"), on, 1, 1e-6, 30.0, 0.5, "beam4bfs")
    )
    ours = program(backend)
    ours.run()
    (row,) = ours.backend.contraction_rows
    assert row["schedule"] == "c/32 a/2 b a c | c a"


@DOORS
def test_what_is_refused_is_the_backend_s(
    backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program runs without a kernel, and says why once, however often it is asked."""
    tell_once.cache_clear()
    monkeypatch.setattr(problem, "MAX_BYTES", 10_000)
    want = program("jax").run()["y"]
    for _ in range(2):
        ours = program(backend)
        np.testing.assert_allclose(ours.run()["y"], want, rtol=1e-4, atol=1e-6)
        assert ours.backend.contraction_rows == []
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "kernel" in x]
    assert "of (64, 64), (64, 64) has no kernel: A is too large (16384 bytes, at most" in line


@pytest.mark.parametrize(
    ("labels", "shapes", "why"),
    [
        ("ab,b->a", [(23200, 23200), (23200,)], "A is too large"),
        ("ab,bc->ac", [(2**31, 1), (1, 8)], "index a is too long"),
    ],
)
def test_refusals_are_told(
    labels: str, shapes: list[tuple[int, ...]], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_once.cache_clear()
    assert contraction(labels, shapes) is None
    assert contraction(labels, shapes) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"recurra: {labels} of ")
    assert why in line


def test_another_kind_of_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_once.cache_clear()
    monkeypatch.setattr(compiler_hook, "runnable", list)
    for _ in range(2):
        assert contraction("ab,bc->ac", [(64, 64), (64, 64)]) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("recurra: contractions have no kernels: this processor runs none of ")


@pytest.mark.parametrize(("whole", "used"), [(0.5, False), (2.0, True)])
def test_what_decides_is_the_code_around(
    whole: float, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that wins by itself is not used where calls of it lose; this is remembered."""
    monkeypatch.setattr(compiler_hook, "GAIN", 0.0)
    asked: list[int] = []

    def compared(calls: Any) -> list[float]:
        for call in calls:
            call()
        asked.append(len(calls))
        return [1.0, 2.0] if len(asked) == 1 else [1.0, whole]

    monkeypatch.setattr(compiler_hook, "measure_in_turns", compared)
    ours = program("torch+nest")
    found = ours.run()["y"]
    np.testing.assert_allclose(found, program("jax").run()["y"], rtol=1e-4, atol=1e-6)
    (row,) = ours.backend.contraction_rows
    assert (row["gain"], row["code's gain"], row["used"]) == (2.0, whole, used)
    assert len(asked) == 2
    asked.clear()
    again = program("torch+nest")
    np.testing.assert_array_equal(again.run()["y"], found)
    assert again.backend.contraction_rows == ours.backend.contraction_rows
    assert len(asked) == 1  # the contraction, not the code around it


def test_what_is_remembered_is_of_the_same_code() -> None:
    folder = Path(os.environ["RECURRA_KERNELS"])
    assert compiler_hook.gain("a", lambda: [2.0, 3.0]) == 1.5
    assert compiler_hook.gain("a", lambda: [1.0, 9.0]) == 1.5
    assert compiler_hook.gain("b", lambda: [1.0, 9.0]) == 9.0
    (path,) = [p for p in folder.rglob("*.json") if '"a"' in p.read_text()]
    for damage in ("{", "[" * 100_000, '{"about": "a", "ours_us": 0, "theirs_us": 1}', "[]"):
        path.write_text(damage)
        assert compiler_hook.gain("a", lambda: [1.0, 4.0]) == 4.0


def test_choices_need_a_gain() -> None:
    assert not KernelChoice("", "", "", 1.0, 1.2, 0.9).taken
    assert KernelChoice("", "", "", 1.0, 1.2, 1.2).taken
    assert KernelChoice("", "", "", 1.0, 1.2).taken
    assert not KernelChoice("", "", "", 1.0, 1.05).taken


def test_the_handler_tells_its_version_and_runs() -> None:
    """Called as XLA does: once for metadata, then with a frame of pointers to buffers."""
    multiply = compiled("ab,bc->ac", sizes=(5, 6, 7))
    handler = KernelHandler(multiply, (0, 3))
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler.address)
    frame, extension, metadata = (np.zeros(24, np.int64) for _ in range(3))
    at = [x.ctypes.data for x in (extension, metadata)]
    frame[1], extension[1], extension[3] = at[0], 1, at[1]
    assert call(frame.ctypes.data) is None
    assert metadata[3] == 3 << 32  # major 0, minor 3
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, s).astype(np.float32) for s in ((5, 6), (6, 7)))
    out = np.zeros((5, 7), np.float32)
    buffers = [np.zeros(6, np.int64) for _ in range(3)]
    for buffer, x in zip(buffers, (a, b, out), strict=True):
        buffer[3] = x.ctypes.data
    arguments, results = (np.array([y.ctypes.data for y in x]) for x in (buffers[:2], buffers[2:]))
    frame[1], frame[9], frame[14] = 0, arguments.ctypes.data, results.ctypes.data
    assert call(frame.ctypes.data) is None
    np.testing.assert_array_equal(out, a @ b)


def test_the_version_is_the_header_s() -> None:
    major, minor = nest_kernels._version()
    assert major >= 0
    assert minor >= 0


def test_one_worker_and_no_cache() -> None:
    backend = backend_of("jax+nest")
    assert getattr(backend, "cached", None) is None
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        rc.output(y=rc.value(t) * 1.0)
    with pytest.raises(RecurraError, match="runs on one worker"):
        ctx.compile({T: 4}, backend="jax+nest", workers=2)


@pytest.mark.parametrize(("old", "new"), nest._RENAMED_MODULES.items())  # pyright: ignore[reportPrivateUsage]
def test_modules_are_found_by_their_old_names(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"nest\.{old} is called recurra\.nest\.{new} now"):
        found = getattr(nest, old)
    assert found is importlib.import_module(f"recurra.nest.{new}")


def test_programs_that_import_an_old_name() -> None:
    with pytest.warns(DeprecationWarning, match=r"recurra\.nest\.door is called"):
        from recurra.nest import door  # pyright: ignore[reportAttributeAccessIssue]
    assert door.contraction is contraction
