"""Maps of one file are one memory to an executor, whoever made them."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recurra.window import Executor, copy, kernel, mapped_files
from recurra.window.access import segment_of

SIZE = 8192


def by_numpy(path: Path) -> Any:
    return np.memmap(path, np.float64, "r+")


def by_mmap(path: Path) -> Any:
    with path.open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), SIZE))


def by_torch(path: Path) -> Any:
    return torch.from_file(str(path), shared=True, size=SIZE // 8, dtype=torch.float64)


def from_numpy(path: Path) -> Any:
    return torch.from_numpy(np.asarray(by_numpy(path)))


def from_buffer(path: Path) -> Any:
    with path.open("r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), SIZE), dtype=torch.float64)


def by_torch_and_numpy(path: Path) -> Any:
    return by_torch(path).numpy()


WAYS = [by_numpy, by_mmap, by_torch, from_numpy, from_buffer, by_torch_and_numpy]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "numbers"
    made.write_bytes(bytes(SIZE))
    return made


@kernel(reads=lambda x: (x,), writes=lambda x: (x,))
def slowly_add(x: Any) -> None:
    time.sleep(0.002)
    x += 1


def added_and_copied(one: Any, other: Any) -> list[float]:
    found: list[float] = []
    for _ in range(5):
        one[:] = 0
        with Executor(threads=2, policy="always") as run:
            out = np.zeros(SIZE // 8)
            run.launch(slowly_add, one)
            run.launch(copy, np.asarray(other), out)
            found.append(float(run.read(out)[0]))
    return found


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_whoever_made_them(
    path: Path, first: Callable[[Path], Any], second: Callable[[Path], Any]
) -> None:
    one, other = first(path), second(path)
    assert segment_of(one[100:]) == segment_of(other[100:])
    assert segment_of(one[100:]) != segment_of(other[101:])


@pytest.mark.parametrize("way", WAYS)
def test_kernels_keep_their_order(path: Path, way: Callable[[Path], Any]) -> None:
    assert added_and_copied(way(path), way(path)) == [1.0] * 5


def test_shared_memory_that_is_opened_twice() -> None:
    one = SharedMemory(create=True, size=SIZE)
    other = SharedMemory(one.name)
    arrays = [np.ndarray(SIZE // 8, "f8", memory.buf) for memory in (one, other)]
    try:
        assert added_and_copied(*arrays) == [1.0] * 5
    finally:
        arrays.clear()
        for memory in (other, one):
            memory.close()
        one.unlink()


def test_other_files_and_other_memory_are_others(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(SIZE))
    assert segment_of(by_mmap(path)) != segment_of(by_mmap(other))
    private = np.memmap(path, np.float64, "c")
    assert segment_of(private).start == private.__array_interface__["data"][0]
    own = np.frombuffer(bytearray(SIZE))
    assert segment_of(own).start == own.__array_interface__["data"][0]


def test_older_systems_are_read_line_by_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [by_numpy(path), by_mmap(path)[7:], np.frombuffer(bytearray(SIZE)), np.zeros(9)]
    asked = [mapped_files.number_of(x.__array_interface__["data"][0]) for x in arrays]

    def too_old(*_: object) -> None:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr(mapped_files, "_query_map", too_old)
    read = [mapped_files.number_of(x.__array_interface__["data"][0]) for x in arrays]
    assert read == asked
    assert [number >= mapped_files.FILES for number in read] == [True, True, False, False]


def test_where_nobody_says_what_is_mapped_files_have_names(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_files, "MAPS", "/nowhere/maps")
    assert segment_of(by_numpy(path)[7:]) == segment_of(by_numpy(path)[7:])
    assert segment_of(by_torch(path)).size == SIZE
    assert segment_of(by_mmap(path)).size == SIZE
