"""What `reads` and `writes` of a kernel give: arrays; what tells no memory is refused."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

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
