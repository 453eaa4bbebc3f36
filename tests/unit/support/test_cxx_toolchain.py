"""Who looks for a C++ compiler is told what is missing, and how an error is told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from recurra.support import cxx_toolchain
from recurra.support.cxx_toolchain import BuildError
from recurra.support.notices import in_one_line


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs the compiler, a compiler where there is another, or what the quotes lack."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "g++").touch(0o700)
    told = [
        ("ccache g++ -g", "there is no ccache on the path", "install ccache, or CXX='g++ -g'"),
        ("clang++-99", "there is no C++ compiler: there is no clang++-99", "unset CXX: there is g"),
        ("'", "CXX=' is not understood: No closing quotation", "unset CXX, or close what it qu"),
    ]
    for given, what, hint in told:
        monkeypatch.setenv("CXX", given)
        with pytest.raises(BuildError) as refused:
            cxx_toolchain.compiler()
        assert in_one_line(refused.value).startswith(what)
        assert refused.value.hint.startswith(hint)


def test_a_line_of_an_error_ends_with_what_it_says() -> None:
    assert in_one_line(BuildError("no", facts="a\n  b", hint="")) == "no: a b"
    assert in_one_line(BuildError("no", hint="try")) == "no; try"
