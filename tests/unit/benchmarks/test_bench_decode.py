"""Decoders written by hand and ours make the same tokens, with and without a window."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.decode import figures
from benchmarks.decode.contestants import makers
from benchmarks.decode.memory import held
from benchmarks.decode.pictures import Panel, names, picture
from benchmarks.decode.recurra_program import contestant
from benchmarks.decode.suite import agreed
from benchmarks.decode.whole import Decode, decode
from benchmarks.decode.workload import LAUNCH, STEPS, Work
from benchmarks.harness import Contestant

SMALL = dict(L=2, D=32, H=4, KV=2, HD=8, F=48, V=61)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize(("B", "window"), [(1, 0), (2, 8)])
def test_all_make_the_same_tokens(B: int, window: int) -> None:
    work = Work(B, 160, window, **SMALL)
    us = contestant(work)
    answer = us.answer()
    assert answer["tokens"].shape == (B, STEPS)
    assert len(set(answer["tokens"].ravel())) > 3
    once = Contestant("ours", us.run, lambda: answer)
    sound, others = agreed(work, {**makers(), "ours": lambda _: once})
    assert [how for _, how in sound] == ["exact"] * len(makers())
    assert others == []


@pytest.mark.slow
def test_who_differs_or_fails_has_a_row_and_the_others_go_on() -> None:
    work = Work(1, 160, **SMALL)
    us = contestant(work)
    answer = us.answer()

    def fixed(_: Work) -> Contestant:
        return Contestant("ours", us.run, lambda: answer)

    def differs(_: Work) -> Contestant:
        return Contestant("other", us.run, lambda: {**answer, "tokens": answer["tokens"] + 1})

    def fails(_: Work) -> Contestant:
        raise MemoryError("too much")

    sound, rows = agreed(work, {"ours": fixed, "other": differs, "broken": fails, "same": fixed})
    assert len(sound) == 2
    assert [(r.peer, r.checked) for r in rows] == [("other", "differs"), ("broken", "failed")]


@pytest.mark.slow
@pytest.mark.parametrize("who", ["ours", "Torch + SDPA"])
def test_a_whole_decode_is_watched(who: str) -> None:
    """A launch compiles; then there is a time and a size after each, to the end of the text."""
    found = Decode(**decode(Work(1, 96, start=16, **SMALL).json(), who, 1, None))
    assert len(found.ms) == len(found.held) == (96 - 16) // LAUNCH - 1
    assert found.mean > 0
    assert found.peak >= max(found.held)


def test_figures_have_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture of quick measurements: its numbers are made up, its lines are all there."""
    one = Decode((9.0, 9.0, 2.0, 3.0), (10**6, 2 * 10**6, 3 * 10**6), 3 * 10**6)
    monkeypatch.setattr(figures, "decoded", lambda work, who, threads: one)
    made = {
        "sweep": {"32": 3.0, "64": 2.0, "0": 4.0},
        "compiling": {"strip": 0.1, figures.ALL: 2.0},
    }
    monkeypatch.setattr(figures, "in_worker", lambda f, arguments, threads: made[f.__name__])
    svg, numbers = figures.figures(tmp_path, quick=True)
    lines = json.loads(numbers.read_text())["lines"]
    assert lines["Between tokens, causal, B=1"]["ours"] == [[256, 2.5], [512, 2.5]]
    assert lines["Memory, causal, B=1"]["ours"] == [[32, 1.0], [48, 2.0], [64, 3.0]]
    assert lines["Points of a tile, T=1024, B=1"]["ours"][-1] == [1024, 4.0]
    assert lines["Compilation"][figures.ALL] == [[2, 2.0], [4, 2.0]]
    drawn = ElementTree.parse(svg).getroot()
    texts = {x.text for x in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {*makers(), "256", "CPU ms", "points (the last: no tiles)"} <= texts


def test_names_do_not_lie_on_each_other() -> None:
    found = names({"a": 10.0, "b": 11.0, "c": 255.0, "d": 259.0})
    heights = sorted(found.values())
    assert all(b - a >= 15 for a, b in pairwise(heights))
    assert heights[-1] <= 260
    assert "<title>x &amp; y</title>" in picture(
        "x & y", [Panel("t", "x", "y", {"l": [(1, 2), (3, 4)]})]
    )


@pytest.mark.slow
def test_compile_time_is_of_every_layer_count() -> None:
    """Figures 18 and 24 as they are measured, of very little."""
    found = figures.compiling(1)
    assert found[figures.ALL] > found[figures.XLA] > 0
    assert found[figures.AS_DIM] > 0
    assert {"canonicalize", "strip_mine"} < found.keys()
    assert min(found.values()) >= 0


@pytest.mark.slow
def test_what_is_held_is_keys_values_and_little_that_does_not_grow() -> None:
    sizes = {**SMALL, "L": 1, "D": 64, "H": 8, "KV": 8}
    short, long = held(Work(1, 1024, **sizes)), held(Work(1, 2048, **sizes))
    assert (short.kept, long.kept) == (short.least, long.least)
    assert long.temporary == short.temporary
    window = held(Work(1, 1024, 8, **sizes))
    assert window.kept == 2 * window.least == 2 * 2 * 8 * 8 * 8 * 4
