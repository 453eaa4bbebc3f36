"""A checkpoint that falls out of the rotation is written over by a later one, if nobody looks."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recurra.checkpoint import checkpoint
from recurra.errors import RecurraError
from recurra.support import atomic_write

LEASES = atomic_write._LEASE  # elsewhere nothing is written over, and all of this holds as well


def save(folder: Path, k: int, size: int = 1000, keep: int = 1) -> Path:
    return checkpoint.save(folder, {"x": np.full(size, k)}, {"k": k}, keep=keep)


def holds(folder: Path, k: int, size: int = 1000) -> None:
    found = checkpoint.load(folder, warn=pytest.fail)
    assert found.meta == {"k": k}
    np.testing.assert_array_equal(found.arrays["x"], np.full(size, k))


def test_two_files_take_turns(tmp_path: Path) -> None:
    files = {save(tmp_path, k).stat().st_ino for k in range(8)}
    assert len(files) == 2 or not LEASES
    assert len(os.listdir(tmp_path)) == 2 + LEASES  # the lock, the newest, the spare


@pytest.mark.parametrize("sizes", [(1000, 1000, 1), (1, 1, 1000), (0, 1000, 0)])
def test_a_file_has_the_length_of_the_new(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    for k, size in enumerate(sizes * 2):
        save(tmp_path, k, size)
        holds(tmp_path, k, size)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    with open(path, "rb") as file:
        yield lambda: (file.seek(0), file.read())[1]


@contextmanager
def mapped(path: Path) -> Iterator[Any]:
    with open(path, "rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    yield lambda: bytes(view)
    view.close()


@contextmanager
def linked(path: Path) -> Iterator[Any]:
    kept = path.parent.parent / "kept"
    os.link(path, kept)
    yield kept.read_bytes


@pytest.mark.parametrize("look", [opened, mapped, linked])
def test_what_someone_looks_at_stays_as_it_is(tmp_path: Path, look: Any) -> None:
    folder = tmp_path / "checkpoints"
    for k in range(4):
        path = save(folder, k)
    with look(path) as read:
        before = read()
        for k in range(4, 8):
            save(folder, k)
            holds(folder, k)
        assert read() == before
    for k in range(8, 12):
        save(folder, k)
        holds(folder, k)


def test_large_files_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_write, "LARGEST", 8000)
    for k in range(4):
        save(tmp_path, k)
    assert not (tmp_path / atomic_write.SPARE).exists()


@pytest.mark.parametrize("call", ["fsync", "rename", "write"])
def test_what_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    for k in range(4):
        save(tmp_path, k)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    def chunks(*_: Any) -> Iterator[bytes]:
        yield b"begun"
        full()

    with monkeypatch.context() as patch:
        if call == "write":
            create = atomic_write.create
            patch.setattr(atomic_write, "create", lambda path, _: create(path, chunks()))
            patch.setattr(checkpoint, "pack", lambda *_: [b"begun"])
        else:
            patch.setattr(os, call, full)
        with pytest.raises(RecurraError, match="No space left on device"):
            save(tmp_path, 4)
    holds(tmp_path, 3)
    assert sorted(os.listdir(tmp_path)) == [".lock", "00000004.safetensors"]
    save(tmp_path, 5)
    holds(tmp_path, 5)


STOPS = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
from test_spare import Path, atomic_write, save
calls = 0
def trace(frame, event, _):
    global calls
    if frame.f_code.co_filename.endswith(("atomic_write.py", "checkpoint.py")):
        if event == "line":
            calls += 1
            if calls == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
folder = Path(sys.argv[1])
for k in range(3):
    save(folder, k)
sys.settrace(trace)
save(folder, 3)
sys.settrace(None)
print(calls)
"""


@pytest.mark.slow
def test_a_kill_at_any_line_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """One in seven lines of a save that writes over a spare; all of them by hand."""

    def stopped(at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", STOPS, str(tmp_path / str(at)), str(at)]
        command.append(str(Path(__file__).parent))
        return subprocess.run(command, capture_output=True, text=True, check=False)

    lines = int(stopped(10**6).stdout)
    assert lines > 50
    for at in range(1, lines + 1, max(1, lines // 7)):
        done = stopped(at)
        assert done.returncode == -signal.SIGKILL, done.stderr
        found = checkpoint.load(tmp_path / str(at), warn=pytest.fail)
        assert found.meta["k"] in (2, 3)
        assert (found.arrays["x"] == found.meta["k"]).all()
        save(tmp_path / str(at), 9)
        holds(tmp_path / str(at), 9)
