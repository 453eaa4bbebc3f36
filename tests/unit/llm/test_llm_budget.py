"""A budget for what is kept of the past: what does not fit is refused, what is hinted at fits."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from recurra.errors import PlanError, RecurraError
from recurra.llm import config as configs
from recurra.llm import generate
from recurra.llm.generate import Generator, Request
from recurra.llm.init import save
from recurra.llm.presets import preset, tiny
from recurra.support.byte_units import parse

PROMPT = [[5, 6, 7, 8]]


def two_layers(folder: Path) -> None:
    given = tiny(preset("llama-3.2-1b"), 43) | {"num_hidden_layers": 2}
    folder.mkdir()
    (folder / configs.FILE).write_text(json.dumps(given))
    save(folder, configs.from_dict(given), "f32", 0, 10**9)


def total(g: Generator, ask: Request) -> int:
    return sum(s["bytes"] for s in g.prepare(PROMPT, ask)[0].stores)


@pytest.mark.slow
@pytest.mark.parametrize(("mix", "part"), [("sinks:2+3", 0.5), ("window:8,causal", 0.7)])
def test_what_is_hinted_at_fits(mix: str, part: float, tmp_path: Path):
    two_layers(tmp_path / "m")
    g = Generator(tmp_path / "m", attention=mix, backend="numpy")
    free = Request(40, eos=())
    most = int(part * total(g, free))
    with pytest.raises(PlanError) as error:
        g.stream(PROMPT, free, memory=most)
    said = str(error.value)
    assert f"takes {total(g, free):,} bytes, {total(g, free) - most:,} more than {most:,}" in said
    found: dict[str, Any] = dict(re.findall(r"(attention|new)='?([\w:]+)", said))
    if "attention" in found:
        other = Generator(tmp_path / "m", attention=found["attention"], backend="numpy")
        other.stream(PROMPT, free, memory=most)
        wider = f"window:{int(found['attention'].split(':')[1]) + 1}"
        with pytest.raises(PlanError):
            Generator(tmp_path / "m", attention=wider, backend="numpy").stream(
                PROMPT, free, memory=most
            )
    assert ("new" in found) == ("causal" in mix)
    if "causal" not in mix:  # nothing grows
        return
    new = int(found["new"])
    g.stream(PROMPT, Request(new, eos=(), memory=most))
    with pytest.raises(PlanError):
        g.stream(PROMPT, Request(new + 1, eos=(), memory=most))


@pytest.mark.slow
def test_a_window_that_is_hinted_at_fits_with_what_its_prompt_takes(tmp_path: Path):
    two_layers(tmp_path / "m")
    ask = Request(80, eos=(), memory=30_000)
    with pytest.raises(PlanError) as error:
        Generator(tmp_path / "m", backend="numpy").stream([[5] * 40], ask)
    (window,) = re.findall(r"window:\d+", str(error.value))
    Generator(tmp_path / "m", attention=window, backend="numpy").stream([[5] * 40], ask)


def test_a_constant_state_fits_or_rows_are_too_many(tmp_path: Path):
    two_layers(tmp_path / "m")
    g = Generator(tmp_path / "m", attention="linear", backend="numpy")
    with pytest.raises(PlanError, match=r"0 of \d stores grow.*\n  hint: memory=5120"):
        g.stream(PROMPT, memory=1000)


def test_what_is_free_is_a_budget_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    two_layers(tmp_path / "m")
    g = Generator(tmp_path / "m", backend="numpy")
    monkeypatch.setattr(generate, "free_bytes", lambda: 20_000)
    with pytest.raises(
        PlanError, match=r"more than 20,000 that are free\n.*\n  hint: attention='window:"
    ):
        g.stream(PROMPT, Request(60, eos=()))
    monkeypatch.setattr(generate, "free_bytes", lambda: None)
    g.stream(PROMPT, Request(60, eos=()))


@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_weights_of_layers_in_turns_are_read_where_they_lie(tmp_path: Path, dtype: str):
    """They are no stores either: a budget is of what is kept of the past."""
    given = tiny(preset("llama-3.2-1b"), 43) | {"num_hidden_layers": 18, "intermediate_size": 1024}
    (tmp_path / configs.FILE).write_text(json.dumps(given))
    save(tmp_path, configs.from_dict(given), "f32", 0, 10**9)
    g = Generator(tmp_path, attention="causal,window:4", dtype=dtype, backend="numpy")
    ask = Request(3, eos=(), memory=200_000)
    first = g.generate(PROMPT, ask)
    tracemalloc.start()
    assert g.generate(PROMPT, ask) == first
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < g.weights.nbytes / 2


def test_amounts():
    assert [parse(x) for x in ("5", "64MiB", "1.5 KiB", "2GB")] == [
        5, 64 << 20, 1536, 2 * 10**9,
    ]  # fmt: skip
    for wrong in ("", "MiB", "-1", "3 XB"):
        with pytest.raises(RecurraError, match="is no amount of memory"):
            parse(wrong)
