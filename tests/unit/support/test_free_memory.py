"""The memory that a process may still take, inside a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from recurra.support import free_memory


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": "9000", "memory.current": "5000"}, 4300),
        ({"memory.max": "max", "memory.current": "5000"}, None),
        ({"memory.limit_in_bytes": "5000", "memory.usage_in_bytes": "6000"}, 0),
        ({}, None),
    ],
)
def test_a_container_has_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], left: int | None
):
    """Its limit, less what it uses, but for copies of files that can be dropped."""
    own = tmp_path / "group"
    own.mkdir()
    monkeypatch.setattr(free_memory, "GROUPS", ())
    outside = free_memory.free_bytes()
    for name, text in (files | {"memory.stat": "anon 9\ninactive_file 300\n"}).items():
        (own / name).write_text(text + "\n")
    monkeypatch.setattr(free_memory, "GROUPS", (str(own),))
    found = free_memory.free_bytes()
    if left is None:
        assert (found is None) == (outside is None)
    else:
        assert found == left
