"""The editor: words change a nest and its GFLOPS, and what is refused says why."""

from __future__ import annotations

import json
import os
import pty
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from recurra import cli
from recurra.nest import catalogue
from recurra.nest.editor import browser, terminal
from recurra.nest.editor.session import Bench, described
from recurra.nest.loops import Nest, parse, untiled
from recurra.nest.target import runnable

MATMUL = catalogue.matmul(24, 16, 32)


class Stub(Bench):
    """GFLOPS by the order's length: nothing is compiled."""

    def __init__(self, nest: Nest) -> None:
        super().__init__(nest, runnable()[0])
        self.peak, self.asked = 100.0, list[str]()

    def gflops(self, nest: Nest) -> float:
        self.asked.append(nest.order)
        return float(len(nest.order))


def edited(*words: str) -> Any:
    bench = Stub(untiled(MATMUL))
    s = bench.begin(untiled(MATMUL))
    for word in words:
        s = bench.after(s, word)
    return s


def test_words_edit() -> None:
    s = edited("split_8", "down", "swap_down", "[B]")
    assert s.nest.order == "m/8 k [B] m n | m n"
    assert s.gflops == len(s.nest.order)
    assert s.first == len("m k n | m n")
    assert s.note == ""


def test_nothing_is_measured_twice_in_a_row() -> None:
    bench = Stub(untiled(MATMUL))
    s = bench.begin(untiled(MATMUL))
    for word in ("down", "down", "up"):
        s = bench.after(s, word)
    assert bench.asked == ["m k n | m n"]
    assert s.nest.cursor == 1


def test_undo_and_redo() -> None:
    words = ("split_8", "down", "swap_down")
    assert edited(*words, "undo").nest == edited(*words[:2]).nest
    assert edited(*words, "undo", "undo", "undo").nest == untiled(MATMUL)
    assert edited(*words, "undo", "undo", "redo", "redo").nest == edited(*words).nest
    assert edited("split_8", "undo", "split_4").future == ()
    assert edited("undo").note == "there is nothing to undo"


def test_what_is_refused_changes_nothing() -> None:
    s = edited("down", "swap_up", "split_32")
    assert s.nest == edited("down", "swap_up").nest
    assert s.note.startswith("split_32 is not possible here")
    assert edited("[Z]").note.startswith("Z cannot be packed")
    assert edited("magic").note.startswith("there is no word 'magic'")
    assert "threads cannot share the loop over k" in edited("down", "swap_up", "parallel").note


def test_packing_and_threads_are_undone_by_the_same_word() -> None:
    assert edited("[B]", "[B]").nest == untiled(MATMUL)
    assert edited("parallel", "parallel").nest == untiled(MATMUL)
    assert edited("parallel").nest.parallel
    assert "annotations come last" in edited("[B]", "split_8").note


def test_a_whole_order() -> None:
    assert edited("n/16 m/6 k m n").nest.order == "n/16 m/6 k m n | m n"
    assert edited("n/7 k").note.startswith("the last loop over n in")


def test_it_is_measured() -> None:
    bench = Bench(untiled(MATMUL), runnable()[0])
    s = bench.after(bench.begin(untiled(MATMUL)), "split_8")
    assert s.gflops > 0
    assert "% of peak" in s.status
    assert bench.verified == {"m k n | m n", "m/8 m k n | m n"}


# Terminal


def test_lines_are_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RECURRA_KERNELS", str(tmp_path / "none"))
    words, out = tmp_path / "words", tmp_path / "nest.txt"
    words.write_text("split_8\n\ndown\nmagic\nquit\nup\n")
    with words.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        given = ["tune", "edit", "mk,kn->mn", "--sizes", "24,16,32", "--json", "--out", str(out)]
        assert cli.main(given) == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert report["order"] == "m/8 m k n | m n"
    assert report["cursor"] == 1
    assert "there is no word 'magic'" in shown.err
    assert parse(out.read_text()).order == report["order"]


def test_keys_are_words() -> None:
    assert set(terminal.KEYS.values()) <= {
        *Stub(untiled(MATMUL)).actions.names, "[A]", "[B]", "parallel", "undo", "redo", "quit"
    }  # fmt: skip


def test_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys through a pseudo-terminal; its settings are put back."""
    import termios

    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as keyboard, open(os.devnull, "w") as nowhere:
        monkeypatch.setattr("sys.stdin", keyboard)
        monkeypatch.setattr("sys.stdout", nowhere)
        before = termios.tcgetattr(theirs)
        bench = Stub(untiled(MATMUL))
        with terminal.screen() as show:

            def then(text: str) -> None:
                show(text)
                os.write(ours, b"q" if "m/8" in text else b"8")

            s = terminal.run_editor(bench, bench.begin(untiled(MATMUL)), terminal.keys, then)
        assert termios.tcgetattr(theirs) == before
    os.close(ours)
    assert s.nest.order == "m/8 m k n | m n"


# Browser


def test_a_browser() -> None:
    bench, said = Stub(untiled(MATMUL)), list[str]()
    told, results = threading.Event(), list[Any]()

    def say(words: str) -> None:
        said.append(words)
        told.set()

    begin = bench.begin(untiled(MATMUL))
    thread = threading.Thread(
        target=lambda: results.append(browser.run_editor(bench, begin, 0, say)), daemon=True
    )
    thread.start()
    assert told.wait(10)
    address = said[0].split()[2].rstrip(";")

    def asked(word: str, at: str = address) -> Any:
        with urllib.request.urlopen(at, word.encode(), timeout=10) as answer:
            return json.loads(answer.read())

    with urllib.request.urlopen(address, timeout=10) as page:
        text = page.read().decode()
    assert "<title>A nest, edited</title>" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        asked("split_8", address.rsplit("/", 1)[0] + "/guessed")
    assert asked("split_8")["order"] == "m/8 m k n | m n"
    assert asked("")["words"] == described(bench, bench.after(begin, "split_8"))["words"]
    asked("quit")
    thread.join(10)
    assert results[0].nest.order == "m/8 m k n | m n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "8,8"], "'mk,kn->mn' has 3 sizes: m, k, n"),
        (["--sizes", "8,8,8", "--order", "m/3 q"], "not understood"),
        (["--sizes", "8,8,8", "--out", "/none/x"], "/none/x cannot be written"),
        (["--sizes", "8,8,8", "--browser", "--port", "99999"], "port 99999 cannot be served"),
    ],
)
def test_wrong_input(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", "edit", "mk,kn->mn", *arguments]) == 2
    assert message in capsys.readouterr().err.splitlines()[0]
