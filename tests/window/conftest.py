"""Tests marked `needs_compiler` build native parts of the window; elsewhere they are skipped."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest

COMPILERS = ("g++", "clang++", "c++")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_compiler: asks for a C++ compiler and nanobind")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(map(shutil.which, COMPILERS)) and find_spec("nanobind"):
        return
    for item in items:
        if item.get_closest_marker("needs_compiler"):
            item.add_marker(pytest.mark.skip(reason="no C++ compiler, or no nanobind"))
