"""The folder of the compilation cache: what is loaded, what is removed, what is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cached_program import STARTS, program
from documents import env
from recurra.compiler import compilation_cache
from recurra.compiler.compilation_cache import ENTRY, CachedProgram, Folder
from recurra.config import environment
from recurra.errors import RecurraError
from recurra.support.private_files import user_cache_folder

NAMES = [f"{k:032x}" for k in range(4)]


@pytest.fixture
def entry(tmp_path: Path) -> CachedProgram:
    """One with a part."""
    made = CachedProgram(Folder(tmp_path / "given"), NAMES[0])
    made.put("program", b"code")
    return made


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


# ---- what is loaded


def test_only_this_user_may_write_what_we_make(entry: CachedProgram) -> None:
    before = os.umask(0)  # under which a file is anybody's
    try:
        entry.put("memory-1", b"code")
        CachedProgram(entry.folder, NAMES[1]).put("program", b"code")
    finally:
        os.umask(before)
    ours = entry.folder.root / "recurra"
    made = [p for p in (ours, *ours.rglob("*")) if p.name != ".lock"]
    assert len(made) == 7
    assert not [p for p in made if p.stat().st_mode & 0o022]
    assert entry.get("memory-1", bytes.decode) == "code"


def make_writable(mode: int, at: str) -> Callable[[Path], None]:
    def change(given: Path) -> None:
        path = given / at
        path.chmod(path.stat().st_mode | mode)

    return change


def link(at: str) -> Callable[[Path], None]:
    """Puts a link in the place of a file or folder."""

    def change(given: Path) -> None:
        (given / at).rename(given.parent / "elsewhere")
        (given / at).symlink_to(given.parent / "elsewhere")

    return change


def put_pipe(given: Path) -> None:
    (given / PROGRAM).unlink()
    os.mkfifo(given / PROGRAM)


PROGRAM = f"recurra/programs/{NAMES[0]}/program"
CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a file that a group can write": (make_writable(0o020, PROGRAM), "program may hold"),
    "a file that all can write": (make_writable(0o002, PROGRAM), "its mode is 602"),
    "an entry": (make_writable(0o020, f"recurra/programs/{NAMES[0]}"), "its mode is 720"),
    "all entries": (make_writable(0o002, "recurra/programs"), "recurra/programs may hold"),
    "all of ours": (make_writable(0o020, "recurra"), "recurra may hold"),
    "a linked file": (link(PROGRAM), "it is a symbolic link, not a file"),
    "a linked entry": (link(f"recurra/programs/{NAMES[0]}"), "a symbolic link, not a folder"),
    "a linked folder": (link("recurra/programs"), "it is a symbolic link, not a folder"),
    "a pipe": (put_pipe, "it is something else, not a file"),
}


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES)
def test_what_others_can_write_is_passed_over(
    entry: CachedProgram,
    change: Callable[[Path], None],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(entry.folder.root)

    def load(_: bytes) -> None:
        raise AssertionError("it is loaded")

    assert entry.get("program", load) is None
    assert entry.get("program", load) is None
    (line,) = told(capsys)  # once
    assert why in line
    assert line.endswith("; it is compiled anew")


def test_what_belongs_to_others_is_passed_over(
    entry: CachedProgram, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert entry.get("program", bytes.decode) is None
    entry.put("program", b"mine")
    (line,) = told(capsys)
    assert f"it belongs to user {me}, and this is user {me + 1}" in line


def test_a_file_of_others_gives_way_to_ours(
    entry: CachedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    make_writable(0o002, PROGRAM)(entry.folder.root)
    assert entry.get("program", bytes.decode) is None
    entry.put("program", b"mine")
    assert entry.get("program", bytes.decode) == "mine"
    assert len(told(capsys)) == 1


def test_nothing_is_written_where_others_can(
    entry: CachedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    make_writable(0o002, "recurra/programs")(entry.folder.root)
    entry.put("program", b"mine")
    assert (entry.folder.root / PROGRAM).read_bytes().endswith(b"code")
    (line,) = told(capsys)
    assert line.endswith("nothing is kept there")


def test_a_program_that_others_can_write_is_compiled(
    program_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    want = program().run(seed=3)["norm"]
    assert told(capsys) == []
    for path in program_cache.rglob("*"):
        path.chmod(0o777)
    np.testing.assert_array_equal(program().run(seed=3)["norm"], want)
    assert len(told(capsys)) == 1


def test_a_single_wrong_byte_is_found(
    entry: CachedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    path = entry.folder.root / PROGRAM
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    assert entry.get("program", bytes.decode) is None
    (line,) = told(capsys)
    assert "is damaged; it is made again" in line


# ---- what is removed


def fill(folder: Folder, nbytes: int = 100) -> None:
    """Entries, of which the first was not used for longest."""
    for k, name in enumerate(NAMES):
        CachedProgram(folder, name).put("program", b"x" * (nbytes - compilation_cache.DIGEST))
        os.utime(folder.path / name / "program", (k, k))


def names(folder: Folder) -> list[str]:
    return sorted(p.name for p in folder.path.iterdir() if ENTRY.fullmatch(p.name))


def test_entries_that_were_not_used_for_longest_go(tmp_path: Path) -> None:
    fill(folder := Folder(tmp_path))
    compilation_cache.prune(folder.path, 250)
    assert names(folder) == NAMES[2:]
    assert (
        CachedProgram(folder, NAMES[2]).get("program", len) == 100 - compilation_cache.DIGEST
    )  # used
    compilation_cache.prune(folder.path, 10)
    assert names(folder) == [NAMES[2]]


def test_nothing_goes_that_is_not_ours(tmp_path: Path) -> None:
    """Not in the folder that is given, which others use as well, nor between our own entries."""
    fill(folder := Folder(tmp_path))
    outside = tmp_path / "thesis"
    outside.mkdir()
    theirs = [
        outside / "program",
        tmp_path / NAMES[0] / "program",
        folder.path / "notes" / "program",
        folder.path / "f00" / "program",
        folder.path / NAMES[0] / "thesis.tex",
        folder.path / NAMES[1] / "program.bak",
        folder.path / ("a" * 32),
    ]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (0, 0))
    linked = folder.path / ("b" * 32)
    linked.symlink_to(outside)
    inner = folder.path / NAMES[0] / "region_1-0123456789ab"
    inner.symlink_to(outside / "program")
    compilation_cache.prune(folder.path, 1)
    assert all(path.read_bytes() == b"x" * 1000 for path in theirs)
    assert linked.is_symlink()
    assert inner.is_symlink()
    ours = [p.parent.name for p in folder.path.glob("*/program") if ENTRY.fullmatch(p.parent.name)]
    assert sorted(ours) == [NAMES[3], "b" * 32]


def test_what_killed_writers_left_goes_with_its_entry(tmp_path: Path) -> None:
    fill(folder := Folder(tmp_path))
    left = folder.path / NAMES[0] / ".part-77-region_1-0123456789ab"
    left.write_bytes(b"x")
    os.utime(left, (0, 0))
    compilation_cache.prune(folder.path, 310)
    assert names(folder) == NAMES[1:]


def test_a_cache_stays_as_large_as_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation_cache, "LARGEST", 320)
    monkeypatch.setattr(compilation_cache, "PRUNED_EVERY", 100)
    folder = Folder(tmp_path)
    for k in range(20):
        CachedProgram(folder, f"{k:032x}").put("program", b"x" * 68)
        os.utime(folder.path / f"{k:032x}" / "program", (k, k))
    assert sum(p.stat().st_size for p in folder.path.glob("*/*")) <= 420
    assert CachedProgram(folder, f"{19:032x}").get("program", len) == 68


def test_no_room_is_not_told_as_nothing_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(folder := Folder(tmp_path))
    monkeypatch.setattr(compilation_cache, "LARGEST", 1)
    folder.unpruned = compilation_cache.PRUNED_EVERY
    unlink = os.unlink

    def locked(path: str, **more: Any) -> None:
        if str(path).endswith("program"):
            raise PermissionError(1, "Operation not permitted", path)
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", locked)
    CachedProgram(folder, NAMES[0]).put("memory-1", b"kept")
    (line,) = told(capsys)
    assert line.endswith("could not be kept to 0 MiB: Operation not permitted")
    assert CachedProgram(folder, NAMES[0]).get("memory-1", bytes.decode) == "kept"


# ---- folders that take nothing


@pytest.mark.parametrize("variable", ["RECURRA_CACHE", "XDG_CACHE_HOME"])
def test_a_folder_that_takes_nothing_is_told_of_once(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("RECURRA_CACHE")
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    assert program().run()["norm"].shape == (12,)
    (line,) = told(capsys)
    assert line.startswith(
        f"recurra: nothing is kept in {tmp_path / 'file' / compilation_cache.OURS}: "
    )


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
"""


@pytest.mark.slow
def test_a_full_disk_is_told_of_and_the_program_runs(tmp_path: Path) -> None:
    theirs = env(RECURRA_CACHE=str(tmp_path))
    code = [sys.executable, "-c", FULL + STARTS]
    done = subprocess.run(code, capture_output=True, text=True, env=theirs, check=True)
    assert done.stdout.startswith("[")
    (line,) = done.stderr.splitlines()
    assert (
        line == f"recurra: nothing is kept in {tmp_path / compilation_cache.OURS}: File too large"
    )
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"]


# ---- many at once

WRITES = """
import sys
from pathlib import Path
from recurra.compiler import compilation_cache as cache
cache.LARGEST, cache.PRUNED_EVERY = 30_000, 1
folder, mine, found = cache.Folder(Path(sys.argv[1])), int(sys.argv[2]), 0
for k in range(200):
    entry = cache.CachedProgram(folder, f"{(k * mine) % 7:032x}")
    entry.put("program", bytes([k % 7]) * 5000)
    other = cache.CachedProgram(folder, f"{k % 7:032x}")
    data = other.get("program", bytes)
    found += data is not None
    assert data is None or len(set(data)) == 1 and len(data) == 5000
print(found)
"""


@pytest.mark.slow
def test_processes_that_write_read_and_make_room_at_once(tmp_path: Path) -> None:
    theirs = env()
    command = [sys.executable, "-c", WRITES, str(tmp_path)]
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen([*command, str(k)], stdout=pipe, stderr=pipe, text=True, env=theirs)
        for k in (1, 2, 3)
    ]
    for process in running:
        out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
        assert int(out) > 20
    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) <= 40_000


@pytest.mark.slow
def test_programs_that_start_at_once_share_it(tmp_path: Path) -> None:
    theirs = env(RECURRA_CACHE=str(tmp_path))
    code = [sys.executable, "-c", STARTS]
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(code, stdout=pipe, stderr=pipe, text=True, env=theirs) for _ in range(2)
    ]
    ended = [process.communicate() for process in running]
    assert ended[0] == ended[1]
    assert ended[0][1] == ""
    made = sorted(p.name for p in (tmp_path / compilation_cache.OURS).glob("*/*"))
    assert made
    assert not [name for name in made if name.startswith(".")]


# ---- where it is


def test_it_is_in_the_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECURRA_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert environment().cache == tmp_path / ".cache"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert environment().cache == tmp_path / "Library" / "Caches"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert environment().cache == tmp_path / "mine"
    monkeypatch.setenv("RECURRA_CACHE", str(tmp_path / "other"))
    assert environment().cache == tmp_path / "other"


def test_zero_turns_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for off, files in ((None, True), ("0", False)):
        if off is None:
            monkeypatch.delenv("RECURRA_CACHE")
        else:
            monkeypatch.setenv("RECURRA_CACHE", off)
        before = sorted(tmp_path.rglob("*"))
        program(by=0.125)
        assert (sorted(tmp_path.rglob("*")) != before) is files


def test_no_home_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("RECURRA_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert environment().cache is None
    assert environment().cache is None
    assert told(capsys) == [
        "recurra: compiled programs are not kept: Could not determine home directory."
    ]
    with pytest.raises(RecurraError, match="name one: XDG_CACHE_HOME=/folder"):
        user_cache_folder()


def test_tests_keep_nothing_in_the_cache_of_the_user() -> None:
    assert environment().cache is None
