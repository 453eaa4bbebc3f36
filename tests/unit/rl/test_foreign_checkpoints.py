"""Checkpoints that are whole, and that no run has saved: made or changed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recurra.checkpoint import checkpoint
from recurra.cli import main

SMALL = ["--rows", "2", "--steps", "4", "--hidden", "4", "--checkpoint-every", "2"]
NEW = ["train", "reinforce", "--env", "CartPole-v1", "--backend", "numpy", "--iterations", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    assert main([*NEW, *SMALL, "--out", str(out)]) == 0
    (folder,) = out.iterdir()
    return folder


def resumed(run: Path, arrays: Any = None, **meta: Any) -> int:
    """The exit code of a run that goes on from its checkpoint, with some of it changed."""
    found = checkpoint.load(run / "checkpoints", warn=lambda _: None)
    given = {name: x for name, x in {**found.arrays, **(arrays or {})}.items() if x is not None}
    checkpoint.save(run / "checkpoints", given, {**found.meta, **meta}, number=2)
    try:
        return main(["train", "reinforce", "--resume", str(run), "--iterations", "4"])
    finally:
        checkpoint.save(run / "checkpoints", found.arrays, found.meta, number=2)


SHAPES = {
    "twice as long": (
        "W1_next",
        np.zeros((8, 4), "f4"),
        "W1_next is [8, 4] in the file, and [4, 4]",
    ),
    "an axis more": ("b1_next", np.zeros((1, 4), "f4"), "b1_next is [1, 4] in the file, and [4]"),
    "none": ("b1_m_next", np.zeros(0, "f4"), "b1_m_next is [0] in the file, and [4] here"),
    "no numbers": ("W1_next", np.full((4, 4), 1j, "c8"), "W1_next of"),
}


@pytest.mark.parametrize("what", SHAPES)
def test_other_arrays_are_told_by_name(
    run: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    name, array, told = SHAPES[what]
    assert resumed(run, {f"state/{name}": array}) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "hint: resume from a file that this program has saved" in said
    assert "Traceback" not in said


WORDS = {
    "counters": ({}, """its entry 'counters' is {}; a run saves the iterations that are done"""),
    "seed": ("one", """its entry 'seed' is 'one'; a run saves a whole number"""),
    "hosts": ([], """its entry 'hosts' is []; a run saves the state of each host function"""),
    "lost": ({"x": 1}, """its entry 'lost' is {'x': 1}; a run saves why"""),
    "bounds": ({"T": -1}, """its entry 'bounds' is {'T': -1}; a run saves the bounds"""),
    "workers": (2.5, """its entry 'workers' is 2.5; a run saves how many"""),
}


@pytest.mark.parametrize("name", WORDS)
def test_other_words_are_told(run: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    value, told = WORDS[name]
    assert resumed(run, **{name: value}) == 2
    assert told in capsys.readouterr().err
    assert resumed(run, counters={"t": 2}) == 2
    assert "it counts iterations along t, the program runs along i" in capsys.readouterr().err


def test_the_run_that_is_meant_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in (run.parent, run / "config.json", run / "checkpoints"):
        assert main(["train", "reinforce", "--resume", str(given), "--iterations", "4"]) == 2
        assert f"hint: the newest there is {run}\n" in capsys.readouterr().err
