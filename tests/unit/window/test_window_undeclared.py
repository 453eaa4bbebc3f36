"""Executor(check=True): kernels that write what they do not declare are told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from recurra import window
from recurra.window import Executor, KernelError, Wrapper

SLOTS = np.arange(12.0).reshape(3, 4)


def scale_too_much(x: np.ndarray, y: np.ndarray) -> None:
    x *= 2
    y[1] = 7


def liar(**declared: Callable[..., object]) -> Wrapper:
    return Wrapper("liar", scale_too_much, **declared)  # type: ignore[arg-type]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("policy", ["learn", "always", "never"])
def test_what_is_not_declared_is_told(
    policy: Literal["learn", "always", "never"], native: bool
) -> None:
    x, y = np.ones(3), np.zeros(3)
    kernel = liar(reads=lambda x, y: (x,), writes=lambda x, y: (x,))
    with (
        pytest.raises(KernelError) as told,
        Executor(policy=policy, native=native, check=True) as run,
    ):
        run.launch(kernel, x, y)
    assert str(told.value).splitlines()[0] == "kernel liar writes y, which it does not declare"
    assert "y[1] has another value than before, and writes= gives x" in str(told.value)
    assert "hint: writes=lambda x, y: (x, y,)" in str(told.value)
    assert f"{Path(__file__).name}:" in str(told.value)
    with Executor(policy=policy, native=native) as run:  # as ever, nobody looks
        run.launch(kernel, x, y)


ARRAYS: dict[str, Callable[[], tuple[Any, Any]]] = {  # one whose part is declared, the rest
    "rows": lambda: ((z := SLOTS * 1)[:1], z),
    "backwards": lambda: ((z := SLOTS * 1)[::-1][:1], z[::-1]),
    "columns": lambda: ((z := np.asfortranarray(SLOTS))[:, :1], z),
    "a tensor": lambda: ((z := torch.tensor(SLOTS))[:1], z),
    "bf16": lambda: ((z := torch.tensor(SLOTS).bfloat16())[:1], z),
    "of no axes": lambda: (np.zeros(2), np.zeros(())),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_element_is_named(name: str) -> None:
    part, whole = ARRAYS[name]()

    @window.kernel(reads=lambda part, whole: (), writes=lambda part, whole: (part,))
    def only_the_part(part: np.ndarray, whole: np.ndarray) -> None:
        part[...] = 70

    @window.kernel(reads=lambda part, whole: (), writes=lambda part, whole: (part,))
    def more(part: np.ndarray, whole: np.ndarray) -> None:
        part[...] = 80
        whole[(-1,) * whole.ndim] = 80

    with Executor(check=True) as run:
        run.launch(only_the_part, part, whole)
    with (
        pytest.raises(KernelError, match="kernel more writes whole") as told,
        Executor(check=True) as run,
    ):
        run.launch(more, part, whole)
    last = "[2, 3]" if np.ndim(whole) else " has"
    assert f"whole{last}" in str(told.value)


def test_arrays_in_lists_and_of_nobody() -> None:
    known = np.zeros(2)

    @window.kernel(reads=lambda parts: (known,), writes=lambda parts: parts["out"])
    def into_known(parts: dict[str, list[np.ndarray]]) -> None:
        parts["out"][0][0] = 1
        known[1] = 1

    @window.kernel(reads=lambda parts: (), writes=lambda parts: ())
    def into_lists(parts: dict[str, list[np.ndarray]]) -> None:
        parts["out"][1][0] = 1

    parts = {"out": [np.zeros(2), np.zeros(2)]}
    with pytest.raises(KernelError, match="writes what reads= gives"), Executor(check=True) as run:
        run.launch(into_known, parts)
    with (
        pytest.raises(KernelError, match=r"writes parts\['out'\]\[1\]"),
        Executor(check=True) as run,
    ):
        run.launch(into_lists, parts)


def test_what_others_write_meanwhile_is_theirs() -> None:
    """An argument that a kernel leaves alone may be written by another beside it."""
    begun, go = threading.Event(), threading.Event()
    x, y = np.zeros(4), np.zeros(4)

    @window.kernel(reads=lambda x, y: (x,), writes=lambda x, y: (x,))
    def slow(x: np.ndarray, y: np.ndarray) -> None:
        begun.set()
        assert go.wait(10)
        x += 1

    @window.kernel(reads=lambda y: (y,), writes=lambda y: (y,))
    def beside(y: np.ndarray) -> None:
        assert begun.wait(10)
        y += 1
        go.set()

    with Executor(2, check=True) as run:
        run.launch(slow, x, y)
        run.launch(beside, y)
    assert x[0] == y[0] == 1


def test_a_barrier_may_write_anything() -> None:
    x = np.zeros(3)
    with Executor(check=True) as run:
        run.launch(lambda: x.fill(3))
        run.launch(window.fill, 4.0, x[:1])
    assert x.tolist() == [4, 3, 3]
