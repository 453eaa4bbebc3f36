"""What `reads` and `writes` of a kernel give: arrays; what tells no memory is refused."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from recurra import window


def slowly_one(x: np.ndarray) -> None:
    time.sleep(0.05)
    x[:] = 1


SET = window.kernel(reads=lambda x: (), writes=lambda x: x)(slowly_one)  # not (x,)


@pytest.mark.parametrize("dims", [1, 2])
def test_one_array_is_itself(dims: int) -> None:
    """Its elements are numbers, which lie nowhere: it was read before it was written."""

    @window.kernel(reads=lambda x, y: x, writes=lambda x, y: y)
    def copy(x: np.ndarray, y: np.ndarray) -> None:
        y[:] = x

    x, y = np.zeros((3,) * dims), np.zeros((3,) * dims)
    with window.Executor(threads=2, policy="always") as run:
        run.launch(SET, x)
        run.launch(copy, x, y)
        assert (run.read(y) == 1).all()


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": (lambda x: None, "gives None"),
    "a number": (lambda x: (x[0],), r"gives np\.float64\(0\.0\)"),
    "a number alone": (lambda x: 3, "gives 3"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_tells_no_memory_is_refused(what: str) -> None:
    gives, told = REFUSED[what]
    reads = window.kernel(reads=gives, writes=lambda x: (x,))(slowly_one)
    writes = window.kernel(reads=lambda x: (x,), writes=gives)(slowly_one)
    with window.Executor(threads=2, policy="always") as run:
        for which, kernel in {"reads": reads, "writes": writes}.items():
            with pytest.raises(window.WindowError, match=f"{which}= of kernel slowly_one {told}"):
                run.launch(kernel, np.zeros(3))


def test_numbers_that_are_operands_are_values() -> None:
    y = np.zeros(3)
    with window.Executor(threads=2, policy="always") as run:
        run.launch(window.ufunc(np.add), np.float64(2), np.ones(3), y)
        assert run.read(y).tolist() == [3, 3, 3]


class Owner:
    """Says where its memory is, as NumPy does, and nothing else."""

    def __init__(self, memory: np.ndarray):
        self.memory = memory

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.memory.__array_interface__


class Copying(Owner):
    """As pictures of Pillow's do."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {**self.memory.__array_interface__, "data": self.memory.tobytes()}


def test_who_says_where_memory_is_has_it_there() -> None:
    x, y = np.zeros(6), np.zeros(3)
    owner = Owner(x[::2])
    with window.Executor(threads=2, policy="always") as run:
        run.launch(window.kernel(reads=lambda o: (), writes=lambda o: (o,))(inner), owner)
        run.launch(window.copy, x[::2], y)
        assert run.read(y).tolist() == [1, 1, 1]


def inner(owner: Owner) -> None:
    slowly_one(owner.memory)


ELSEWHERE: dict[str, tuple[Any, str]] = {
    "arrays in an array": (np.array([np.zeros(2), np.zeros(3)], dtype=object), "of objects lies"),
    "a masked array": (np.ma.zeros(3), "masked array lies in several places"),
    "a sparse tensor": (torch.ones(3).to_sparse(), "layout torch.sparse_coo lies in several"),
    "a copy": (Copying(np.ones(3)), "Copying has no address"),
    "a view of bytes": (memoryview(bytearray(8)), "memoryview has no address"),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_what_lies_elsewhere_is_refused(what: str) -> None:
    """Its elements would be touched, and nobody would know."""
    given, told = ELSEWHERE[what]
    with window.Executor(threads=2, policy="always") as run:
        with pytest.raises(window.WindowError, match=told) as raised:
            run.launch(SET, (given,))
        assert "so that the kernel is a barrier" in str(raised.value)
