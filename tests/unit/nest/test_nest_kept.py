"""Kernels on disk: found again whatever the letters, written whole, passed over where damaged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra import cli
from recurra.errors import RecurraError
from recurra.nest import catalogue, compiler_hook, kernel_store
from recurra.nest.default_schedule import standard
from recurra.nest.kernel_store import StoredNest, load, path, save
from recurra.nest.loops import scheduled
from recurra.nest.target import host_target, runnable
from recurra.support.cpu import kind
from recurra.support.notices import tell_once

ON = str(runnable()[0])
PROBLEM = catalogue.matmul(24, 16, 40)
SWAPPED = rc.nest.contraction("xz,yx->yz", dict(y=24, x=16, z=40))


def entry(order: str = "m k n", of_peak: float = 0.5, threads: int = 1) -> StoredNest:
    return StoredNest(scheduled(PROBLEM, order), ON, threads, 1e-6, 30.0, of_peak, "beam4bfs")


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


def test_letters_do_not_matter() -> None:
    """What is tuned as mk,kn->mn is found by whoever asks for the same, also swapped or by view."""
    save(entry("n/16 [B] m k n"))
    a, b = np.ones((24, 16), np.float32), np.ones((16, 40), np.float32)
    assert rc.nest.compile("ij,jk->ik", a, b).nest.order == "k/16 [B] i j k | i k"
    assert rc.nest.compile("kn,mk->mn", b, a).nest.order == "n/16 [A] m k n | m n"
    across = np.ones((16, 24), np.float32).T  # another layout is another problem
    assert rc.nest.compile("mk,kn->mn", across, b).nest.order != entry("n/16 [B] m k n").nest.order
    assert rc.nest.compile("km,kn->mn", a.T, b).nest.order == "n/16 [B] m k n | m n"
    assert rc.nest.proposed(rc.nest.contraction("ca,ab->cb", (24, 16, 40))).order == (
        "b/16 [B] c a b | c b"
    )
    assert save(replace(entry("m k n", 0.9), nest=rc.nest.scheduled(SWAPPED, "y x z | y z")))
    found = load(PROBLEM, ON)
    assert found is not None
    assert found.nest.order == "m k n | m n"


def test_programs_find_it() -> None:
    shapes = [(64, 48), (48, 80)]
    plain = compiler_hook.contraction("Yab,bZ->YaZ", [(2, *shapes[0]), shapes[1]])
    assert plain is not None
    problem = rc.nest.contraction("zmk,kn->zmn", dict(z=2, m=64, k=48, n=80))
    save(replace(entry(), nest=scheduled(problem, "m/2 z n/16 k m n")))
    tuned = compiler_hook.contraction("Yab,bZ->YaZ", [(2, *shapes[0]), shapes[1]])
    assert tuned is not None
    assert tuned.nest.order == "b/2 a d/16 c b d | a b d" != plain.nest.order


DAMAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "half": (lambda t: t[: len(t) // 2], "Expecting|Unterminated|delimiter"),
    "nothing": (lambda t: "", "Expecting value"),
    "changed": (lambda t: t.replace("beam4bfs", "beam2bfs"), "does not give its digest"),
    "older": (lambda t: t.replace('"format": 1', '"format": 0'), "format 0, not 1"),
    "a key": (lambda t: t.replace('"digest"', '"other"'), "it has no 'digest'"),
    "a list": (lambda t: "[]", "."),
    "deep": (lambda t: "[" * 100_000, "nested too deeply"),
    "long": (lambda t: t + " " * 2**20, "more than 1048576 bytes"),
    "not text": (lambda t: "\udcff", "utf-8"),
    "NaN": (lambda t: resealed(t, of_peak=float("nan")), "its of_peak is no number"),
    "a word": (lambda t: resealed(t, of_peak="0.5"), "must be real number"),
    "one more": (lambda t: resealed(t, color="red"), "color"),
    "no nest": (lambda t: resealed(t, nest="for"), "three lines"),
    "a number": (lambda t: resealed(t, nest=3), "."),
    "null": (lambda _: "null", "it is null, and no entry"),
    "an empty list": (lambda _: "[]", r"it is \[\], and no entry"),
}


def resealed(text: str, **changes: Any) -> str:
    """An entry that somebody has changed, digest and all."""
    given = {**json.loads(text), **changes}
    del given["digest"]
    return json.dumps({**given, "digest": kernel_store.digest_of(given)})


@pytest.fixture(autouse=True)
def told_anew() -> None:
    tell_once.cache_clear()


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_are_passed_over(damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Compiling goes on with the standard tile and says why, once; tuning writes a new entry."""
    save(entry("k n m"))
    place = path(PROBLEM, ON)
    change, facts = DAMAGES[damage]
    place.write_text(change(place.read_text()), errors="surrogateescape")
    plain = rc.nest.compile(PROBLEM).nest.order
    assert plain != entry("k n m").nest.order
    assert rc.nest.compile(PROBLEM).nest.order == plain
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"recurra: {place} is no kept kernel: ")
    assert re.search(facts, line)
    assert line.endswith("; it is passed over")
    assert save(entry("k n m", 0.1))
    assert rc.nest.compile(PROBLEM).nest == entry("k n m").nest


@pytest.mark.parametrize("what", ["folder", "pipe", "loop", "closed"])
def test_what_is_no_file_is_passed_over(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    save(entry("k n m"))
    place = path(PROBLEM, ON)
    place.unlink()
    if what == "folder":
        place.mkdir()
    elif what == "pipe":
        os.mkfifo(place)
    elif what == "loop":
        place.symlink_to(place)
    else:
        place.parent.joinpath(".lock").unlink()
        place.parent.rmdir()
        place.parent.touch()
    assert load(PROBLEM, ON) is None
    assert "is no kept kernel" in capsys.readouterr().err


def test_random_damage_is_never_more_than_told(capsys: pytest.CaptureFixture[str]) -> None:
    save(entry("k n m"))
    place, r = path(PROBLEM, ON), Random(0)
    whole = place.read_bytes()
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(r.randint(1, 4)):
            at = r.randrange(len(data))
            data[at : at + r.randint(0, 3)] = r.randbytes(r.randint(0, 3))
        place.write_bytes(data)
        found = load(PROBLEM, ON)
        assert found is None or found == entry("k n m")
    assert capsys.readouterr().err.count("is no kept kernel") > 100


def test_an_entry_at_the_wrong_place_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    save(entry())
    other = replace(entry(), nest=scheduled(catalogue.matmul(8, 8, 8), "m k n"))
    save(other)
    path(other.nest.problem, ON).replace(path(PROBLEM, ON))
    assert load(PROBLEM, ON) is None
    assert "it is of another problem than its name says" in capsys.readouterr().err


def test_a_kept_nest_that_cannot_be_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    """Another version may have kept it: the standard tile is used, aloud."""
    big = catalogue.matmul(512, 512, 512)
    save(replace(entry(), nest=scheduled(big, "[A] m k n")))
    assert rc.nest.compile(big).nest.order == standard(big, host_target()).order
    assert "a kept nest cannot be compiled: what is packed is too" in capsys.readouterr().err
    deep = " ".join(f"{i}/{511 - k}" for k in range(300) for i in "mkn")
    save(replace(entry(), nest=scheduled(big, f"{deep} m k n"), of_peak=0.9))
    assert rc.nest.compile(big).nest.order == standard(big, host_target()).order
    assert "a kept nest cannot be compiled: " in capsys.readouterr().err


def test_no_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody's home: kernels are compiled, and nothing is looked for."""
    for name in ("RECURRA_KERNELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", raise_no_home)
    assert rc.nest.compile(PROBLEM).problem == PROBLEM
    assert "tuned kernels are not looked for: no home" in capsys.readouterr().err


def raise_no_home() -> Path:
    raise RuntimeError("no home")


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECURRA_KERNELS", "/proc/none")
    with pytest.raises(RecurraError, match="cannot be written"):
        save(entry())


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_what_cannot_be_kept_is_told(
    more: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is before a search; one that has begun is not lost with the store."""
    monkeypatch.setenv("RECURRA_KERNELS", "/proc/none")
    words = ["tune", "mk,kn->mn", "--sizes", "24,16,40", "--seconds", "0.1", *more]
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.match(r"/proc/none/\S+ cannot be written\n  .*\n  hint: ", shown.err)
    monkeypatch.setattr("recurra.nest.tune.expect_writable", lambda *_: None)
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert "m<24 k<16 n<40" in shown.out
    assert "cannot be written" in shown.err
    if more:
        assert json.loads(shown.out)["kept"] is None


def test_a_writer_that_dies_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    save(entry())

    def full(*_: Any) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(kernel_store.os, "fsync", full)
    with pytest.raises(RecurraError, match="no space left"):
        save(entry("k m n", 0.9))
    assert load(PROBLEM, ON) == entry()
    assert {x.name for x in path(PROBLEM, ON).parent.iterdir()} == {
        ".lock", path(PROBLEM, ON).name
    }  # fmt: skip


WRITER = """
import sys
from recurra.nest.catalogue import matmul
from recurra.nest.kernel_store import StoredNest, load, save
from recurra.nest.loops import scheduled

p, on = matmul(24, 16, 40), sys.argv[1]
for share in map(float, sys.argv[2:]):
    save(StoredNest(scheduled(p, "m k n"), on, 1, 1e-6, 30.0, share, "beam4bfs"))
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
