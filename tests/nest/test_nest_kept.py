"""Kernels on disk: found again, written whole, refused where damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra import cli
from recurra.errors import RecurraError
from recurra.nest import catalogue, kept
from recurra.nest.kept import Kept, load, path, save
from recurra.nest.loops import scheduled
from recurra.nest.target import runnable
from recurra.processor import kind

ON = str(runnable()[0])
PROBLEM = catalogue.matmul(24, 16, 40)


def entry(order: str = "m k n", of_peak: float = 0.5, threads: int = 1) -> Kept:
    return Kept(scheduled(PROBLEM, order), ON, threads, 1e-6, 30.0, of_peak, "beam4bfs")


def test_what_is_saved_is_loaded() -> None:
    assert load(PROBLEM, ON) is None
    assert save(entry("n/16 [B] m k n"))
    assert load(PROBLEM, ON) == entry("n/16 [B] m k n")
    assert load(PROBLEM, ON, 2) is None
    assert load(PROBLEM, "other") is None
    assert load(catalogue.matmul(24, 16, 41), ON) is None
    assert kind() in str(path(PROBLEM, ON))


def test_the_faster_stays() -> None:
    assert save(entry("m k n", 0.5))
    assert not save(entry("k m n", 0.5))
    assert save(entry("m/2 k m n", 0.6))
    found = load(PROBLEM, ON)
    assert found is not None
    assert found.of_peak == 0.6


def test_compile_takes_it() -> None:
    a, b = np.ones((24, 16), np.float32), np.ones((16, 40), np.float32)
    assert rc.nest.compile("mk,kn->mn", a, b).nest != entry("m/2 k m n").nest
    save(entry("m/2 k m n"))
    multiply = rc.nest.compile("mk,kn->mn", a, b)
    assert multiply.nest == entry("m/2 k m n").nest
    np.testing.assert_array_equal(multiply(a, b), a @ b)
    save(entry("parallel m/8 k m n", threads=2))
    assert rc.nest.compile("mk,kn->mn", a, b, threads=2).nest.parallel
    save(entry("k m n", 0.9, threads=2))  # alone it was faster
    assert rc.nest.compile("mk,kn->mn", a, b, threads=2).nest.order == "k m n | m n"
    assert rc.nest.compile("mk,kn->mn", a, b, schedule="k m n").nest.order == "k m n | m n"


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        (lambda t: t[: len(t) // 2], "Expecting|Unterminated|delimiter"),
        (lambda t: "", "Expecting value"),
        (lambda t: t.replace("beam4bfs", "beam2bfs"), "its content does not give its digest"),
        (lambda t: t.replace('"format": 1', '"format": 0'), "format 0, not 1"),
        (lambda t: t.replace('"digest"', '"other"'), "it has no 'digest'"),
        (lambda t: "[]", "."),
    ],
)
def test_damaged_entries_are_refused(damage: Any, facts: str) -> None:
    save(entry())
    place = path(PROBLEM, ON)
    place.write_text(damage(place.read_text()))
    for ask in (lambda: load(PROBLEM, ON), lambda: rc.nest.compile(PROBLEM), lambda: save(entry())):
        with pytest.raises(RecurraError, match=facts) as refused:
            ask()
        assert str(refused.value).startswith(f"{place} is no kept kernel")
        assert str(refused.value).endswith("hint: remove it, and tune again")


def test_an_entry_at_the_wrong_place_is_refused() -> None:
    save(entry())
    other = replace(entry(), nest=scheduled(catalogue.matmul(8, 8, 8), "m k n"))
    save(other)
    path(other.nest.problem, ON).replace(path(PROBLEM, ON))
    with pytest.raises(RecurraError, match="it is of another problem than its name says"):
        load(PROBLEM, ON)


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECURRA_KERNELS", "/proc/none")
    with pytest.raises(RecurraError, match="cannot be written"):
        save(entry())


def test_a_writer_that_dies_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    save(entry())

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(kept.os, "fsync", full)
    with pytest.raises(RecurraError, match="no space left"):
        save(entry("k m n", 0.9))
    assert load(PROBLEM, ON) == entry()
    assert {x.name for x in path(PROBLEM, ON).parent.iterdir()} == {
        ".lock", path(PROBLEM, ON).name
    }  # fmt: skip


WRITER = """
import sys
from recurra.nest.catalogue import matmul
from recurra.nest.kept import Kept, load, save
from recurra.nest.loops import scheduled

p, on = matmul(24, 16, 40), sys.argv[1]
for share in map(float, sys.argv[2:]):
    save(Kept(scheduled(p, "m k n"), on, 1, 1e-6, 30.0, share, "beam4bfs"))
    assert load(p, on) is not None
"""


def test_writers_at_once() -> None:
    """Whoever comes last, the best entry is there; readers in between see whole ones."""
    shares = [[(k * 7 + j * 3) % 20 / 20 for j in range(20)] for k in range(3)]
    package = {"PYTHONPATH": str(Path(rc.__file__).parents[1])}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, ON, *map(str, s)], env={**os.environ, **package}
        )
        for s in shares
    ]
    assert [w.wait(60) for w in writers] == [0, 0, 0]
    found = load(PROBLEM, ON)
    assert found is not None
    assert found.of_peak == max(max(s) for s in shares)


def test_tune_keeps_what_it_finds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECURRA_KERNELS", str(tmp_path / "mine"))
    short = ["tune", "mk,kn->mn", "--sizes", "24,16,40", "--seconds", "0.1", "--json"]
    assert cli.main([*short, "--no-keep"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] is None
    assert load(PROBLEM, ON) is None
    assert cli.main(short) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kept"] == str(path(PROBLEM, ON))
    assert rc.nest.compile(PROBLEM).nest.order == report["nests"][report["best"]]["order"]
