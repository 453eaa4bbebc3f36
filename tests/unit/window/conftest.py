"""Tests marked `needs_compiler` build native parts of the window; elsewhere they are skipped.

What all of PyTorch's tests here begin with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from built import FOLDER

COMPILERS = ("g++", "clang++", "c++")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_compiler: asks for a C++ compiler and nanobind")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(map(shutil.which, COMPILERS)) and find_spec("nanobind"):
        return
    for item in items:
        if item.get_closest_marker("needs_compiler"):
            item.add_marker(pytest.mark.skip(reason="no C++ compiler, or no nanobind"))


@pytest.fixture(scope="module")
def pytorch_built() -> Iterator[None]:
    """PyTorch's part of the window is built, once; an operator uses one thread."""
    import torch

    from recurra.window.native.native_build import TORCH, build

    build(FOLDER, TORCH)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pytorch_in_windows(pytorch_built: None) -> Iterator[None]:
    """And loaded; gradients are off."""
    import torch

    from recurra.window.native.native_build import TORCH
    from recurra.window.native.native_window import load

    load(FOLDER, TORCH)
    with torch.no_grad():
        yield
