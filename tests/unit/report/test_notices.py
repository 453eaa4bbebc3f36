"""What takes long is told, on a terminal or where progress is asked for."""

from __future__ import annotations

import sys
import time

import pytest

from cached_program import program
from impatient_terminal import Terminal, told_at_once
from recurra.report.progress import track
from recurra.support import notices


def test_a_terminal_is_told_once_it_has_taken_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(notices, "SECONDS", 0.05)
    with notices.notice_if_long("thinking"):
        assert terminal.getvalue() == ""
        time.sleep(0.3)
    assert terminal.getvalue() == "recurra: thinking\n"
    with notices.notice_if_long("blinking"):
        pass
    time.sleep(0.1)
    assert terminal.getvalue() == "recurra: thinking\n"


def test_a_log_file_is_told_where_progress_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "SECONDS", 0.01)
    for _ in range(2):
        with notices.notice_if_long("thinking"):
            time.sleep(0.1)
    with track(1, "train") as bar:
        with notices.notice_if_long("learning"):
            time.sleep(0.1)
        bar.update(1)
    with notices.notice_if_long("thinking"):
        time.sleep(0.1)
    told, *rest = capsys.readouterr().err.splitlines()
    assert told == "recurra: learning"
    assert [x.split()[:2] for x in rest] == [["train", "1/1"]]


@pytest.mark.usefixtures("program_cache")
def test_what_is_compiled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = told_at_once(monkeypatch)
    compiled = program(launch_steps=4)
    assert terminal.getvalue() == "recurra: compiling the program\n"
    compiled.run()
    lines = terminal.getvalue().splitlines()[1:]
    assert lines == [f"recurra: XLA compiles {r.name}" for r in compiled.compiled.program.regions]
    program(launch_steps=4).run()
    assert len(terminal.getvalue().splitlines()) == 1 + len(lines)  # a second start is silent
