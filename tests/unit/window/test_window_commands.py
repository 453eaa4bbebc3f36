"""`recurra window ..`: tables, JSON, pictures, and mistakes that end with 2 and no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recurra.cli import main
from recurra.window.trace import parse

TRACE = """\
# two
a ctas=4 threads=64 registers=32 shared=0 us=3 writes=0x0+64
b ctas=4 threads=64 registers=32 shared=0 us=3 reads=0x0+64 writes=0x40+64
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "two.txt"
    path.write_text(TRACE)
    return path


def test_simulate_prints_a_table(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["window", "simulate", str(trace), "--policies", "serial,acs-hw"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "two: 2 kernels on rtx3070, 32 slots"
    assert [line.split()[0] for line in lines[1:]] == ["policy", "serial", "acs-hw"]
    assert lines[2].split()[2] == "1.0"


def test_simulate_prints_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["window", "simulate", str(trace), "--json", "--costs", "launch=50", "sync=7"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kernels"] == 2
    assert told["sram"] == 1032
    serial, *others = told["rows"]
    assert serial["us"] == 103  # two launches of 50, a kernel of 3
    assert len(others) == 8


def test_timelines_and_traces_are_written(trace: Path, tmp_path: Path) -> None:
    page, events, saved = (tmp_path / name for name in ("t.html", "t.json", "t.txt"))
    one = ["window", "simulate", str(trace), "--policies", "acs-sw", "--timeline"]
    assert main([*one, str(page), "--save", str(saved)]) == 0
    assert page.read_text().count("<rect") == 2
    assert parse(saved.read_text()) == parse(TRACE)
    assert main([*one, str(events)]) == 0
    assert len(json.loads(events.read_text())["traceEvents"]) >= 2


def test_the_paper_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["window", "simulate", "--paper", "--kernels", "30", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["paper"]
    assert {"what", "paper", "ours", "within", "calibrated", "holds"} == set(rows[0])


@pytest.mark.parametrize("program", ["synthetic:ant", "torch:squeezenet"])
def test_profile(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["window", "profile", program, "--kernels", "50", "--batch", "1"]) == 0
    assert "of the warps idle" in capsys.readouterr().out
    assert main(["window", "profile", program, "--kernels", "50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] >= 50


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["simulate"], "no program is given"),
        (["simulate", "nowhere.txt"], "there is no file nowhere.txt"),
        (["simulate", "synthetic:cat"], "there are ant, grasp"),
        (["simulate", "torch:cat"], "there is no workload 'cat'"),
        (["simulate", "torch:ant", "--batch", "-1"], "a batch of -1"),
        (["simulate", "synthetic:ant", "--kernels", "0"], "no program"),
        (["simulate", "synthetic:ant", "--policies", "serial,magic"], "no policy 'magic'"),
        (["simulate", "synthetic:ant", "--policies", ""], "no policy ''"),
        (["simulate", "synthetic:ant", "--gpu", "abacus"], "no GPU 'abacus'"),
        (["simulate", "synthetic:ant", "--slots", "65"], "1 to 64"),
        (["simulate", "synthetic:ant", "--scheduled", "8"], "must be in the list"),
        (["simulate", "synthetic:ant", "--streams", "0"], "at least one"),
        (["simulate", "synthetic:ant", "--costs", "sink=2"], "'sink=2' is no cost"),
        (["simulate", "synthetic:ant", "--costs", "sync=nan"], "'sync=nan' is no cost"),
        (["simulate", "synthetic:ant", "--paper"], "bring their own programs"),
        (["simulate", "synthetic:ant", "--kernels", "9", "--timeline", "x.png"], "neither .html"),
        (["simulate", "synthetic:ant", "--kernels", "9", "--timeline", "x.json"], "one policy"),
        (["simulate", "synthetic:ant", "--kernels", "9", "--save", "no/x.txt"], "be written"),
        (["simulate", "BINARY"], "cannot be read as text"),
        (["profile", "nowhere.txt"], "there is no file"),
    ],
)
def test_mistakes(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("BINARY").write_bytes(b"\xff\xfe\x00")
    assert main(["window", *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert "Traceback" not in told
