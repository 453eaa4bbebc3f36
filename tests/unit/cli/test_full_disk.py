"""A disk that is full, or a path that is wrong, where commands write what they were asked for."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from recurra import cli
from recurra.support import atomic_write

PACKED = "id,lower,upper,size\na,0,3,4\nb,1,5,4\n"
SIMULATE = "window simulate synthetic:ant --kernels 20 --policies serial"
WRITES = {
    "the mapping": "map solve {csv} --fast-size 16B --solver greedy --no-bound --out {file}",
    "a problem": "map import {csv} --fast-size 16B --out {file}",
    "packed buffers": "map pack {csv} --fast-size 16B --out {folder}",
    "a nest": "tune mk,kn->mn --sizes 4,4,4 --seconds 0.2 --no-keep --out {file}",
    "kernels": f"{SIMULATE} --save {{file}}",
    "their timeline": f"{SIMULATE} --timeline {{file}}",
    "a model": "llm init {folder} --tiny",
}


@pytest.mark.parametrize("command", WRITES)
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    csv, folder, file = tmp_path / "lives.csv", tmp_path / "folder", tmp_path / "result.json"
    csv.write_text(PACKED)
    folder.mkdir()
    kept = [file, folder / "lives.csv", folder / "tokenizer.json"]
    for path in kept:
        path.write_text("as before")
    synced = os.fsync

    def full(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").startswith(str(tmp_path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(handle)

    monkeypatch.setattr(os, "fsync", full)
    words = WRITES[command].format(csv=csv, file=file, folder=folder).split()
    assert cli.main(words) == 1
    said = capsys.readouterr().err
    assert "cannot be written\n  No space left on device\n  hint: free some space" in said
    assert all(path.read_text() == "as before" for path in kept)
    assert not list(tmp_path.rglob(".part*"))


def test_links_and_what_is_no_file_are_written_to(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(file)
    atomic_write.save(link, "text")
    assert link.is_symlink()
    assert file.read_text() == "text"
    atomic_write.save("/dev/null", "text")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(atomic_write.NotWrittenError, match="Is a directory") as told:
        atomic_write.save(tmp_path, "text")
    assert told.value.exit_code == 2
