"""The tables of what is refused: each row is written, and told in these words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from documents import ROOT
from recurra.errors import RecurraError

HEAD = "| written | told |\n| --- | --- |\n"


def rows(page: str) -> Iterator[tuple[str, str]]:
    """What is written and what is told, of a page's table."""
    table = (ROOT / "docs" / page).read_text().partition(HEAD)[2].partition("\n\n")[0]
    for line in table.splitlines():
        written, told = line.removeprefix("| `").removesuffix("` |").split("` | `")
        yield written, told


def of_windows(_: Path) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    from recurra import window

    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        x = rc.like(rc.f32, domain=(b, t))
        x[b, 0] = 0.0
        x[b, t + 1] = rc.call(np.sin, rc.f32, x, batch=(b,))
        rc.output(x=x)
    program, on_jax = (ctx.compile({B: 2, T: 3}, backend=name) for name in ("numpy", "jax"))
    with window.Executor() as closed:
        pass
    known = {"window": window, "torch": torch, "program": program, "on_jax": on_jax}
    arrays = {"x": np.zeros(3), "y": np.zeros(3), "model": np.sin}
    return {**known, **arrays, "run": window.Executor(), "closed": closed}


def of_environments(_: Path) -> dict[str, Any]:
    pytest.importorskip("gymnasium")
    return {"rc": rc}


def of_decoding(folder: Path) -> dict[str, Any]:
    from recurra.llm.generate import Generator
    from recurra.llm.init import init_model
    from recurra.llm.sampling import Sampling

    init_model("gemma-2", folder / "models" / "tiny", small=True)
    g = Generator(folder / "models" / "tiny", backend="numpy")
    return {"Generator": Generator, "Sampling": Sampling, "g": g}


PAGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "window.md": of_windows,
    "environments.md": of_environments,
    "decoding.md": of_decoding,
}


@pytest.mark.parametrize("page", PAGES)
def test_what_is_refused_is_told_so(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = PAGES[page](tmp_path)
    found = list(rows(page))
    assert len(found) >= 8
    for written, told in found:
        with rc.Context(dims="b i t"), pytest.raises(RecurraError) as error:
            exec(written, dict(names))
        assert str(error.value).splitlines()[0] == told, written
