"""The page, its fragments and the progress line."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from page_reader import EVIL, read
from recurra.report import page, progress
from recurra.report.curves import charts, smoothed, thinned, ticks
from recurra.report.html import code_html, colored, number, size, table_html
from recurra.report.timeline import draw_timeline

TRACE = """
x0: f32[4]      = input()
c: f32[4]       = const(value=0.5, shape=(4,))  # a < b & "c"
x[t<T]: f32[4]  = merge(x0, d[t-1], when=('t==0', 't>0'))
d[t<T]: f32[4]  = mul(x[t], c)
y[t<T]: f32[]   = sum(d[t], axis=0)
return y
"""
PROGRAM = '''
def region(x, steps):
    """A docstring
    of two lines, with 'quotes'."""
    for t in range(250):
        x = step(x, t)  # in place
    return x * 1e-3
'''
DATA: dict[str, Any] = {
    "meta": {"env": "CartPole-v1", "seed": 1, "optim": {"name": "Adam", "lr": 0.01}},
    "equations": {"trace": TRACE, "vectorize": TRACE.replace("y[t<T]: f32[]", "y: f32[T]")},
    "schedule": "for t in 0..T-1:  act(t)\nfor t in T-1..0:  learn(t)",
    "schedule_chart": [
        {"statement": "act", "start": 0, "stop": 250, "phase": "acting"},
        {"statement": "learn", "start": 250, "stop": 500, "phase": "learning"},
    ],
    "stores": [
        {"store": "theta", "kind": "point", "shape": "f32[4]", "slots": 1, "live": "across i"}
        | {"class": "carried", "bytes": 15384},
        {"store": "o", "kind": "full", "shape": "f32[250,512,4]", "slots": 250, "live": "act"}
        | {"class": "workspace", "bytes": 2048000},
    ],
    "program": PROGRAM,
    "curves": {"charts/episodic_return": [(k, float(k % 17)) for k in range(1000)]},
    "passes": [
        {"name": "simplify", "before": 72, "after": 65, "ms": 4.5},
        {"name": "fuse", "before": 65, "after": 11, "ms": 5.0},
    ],
}


def test_page_holds_everything():
    text = page.render("A <run> & more", **DATA)
    found = read(text)
    shown = [*DATA["equations"].values(), DATA["schedule"], DATA["program"]]
    assert found.pres == [t.strip("\n") for t in shown]
    words = found.text.replace("\u202f", "").replace("\u00a0", " ")
    for row in [*DATA["stores"], *DATA["passes"]]:
        assert all(number(v).replace("\u202f", "") in words for v in row.values())
    for expected in ("A <run> & more", "optim.lr0.01", "total", "2063384", "1.97 MiB", "trace"):
        assert expected in words
    for expected in ("acting", "learning", "episodic_return", "72 → 11 nodes", "9.5 ms", "+1 −1"):
        assert expected in words
    assert len(text) < 100_000


def test_page_of_nothing():
    assert "nothing here" in read(page.render("nothing here")).text
    assert "no curves were logged" in read(page.render("x", curves={})).text


def test_text_of_users_is_escaped():
    rows = [{EVIL: EVIL, "class": EVIL, "bytes": 3, "name": EVIL, "ms": 1}]
    text = page.render(
        EVIL,
        meta={EVIL: EVIL},
        equations={EVIL: EVIL, "2": EVIL + "\nnew" + EVIL},
        schedule=EVIL,
        schedule_chart=[{"statement": EVIL, "start": 0, "stop": 1, "phase": EVIL}],
        stores=rows,
        program=EVIL,
        curves={EVIL: [(0, 1), (1, 2)], "a/" + EVIL: []},
        passes=rows,
    )
    assert text.count("<script>") == 1
    assert "<img" not in text
    assert read(text).pres[0] == EVIL


def test_write_replaces(tmp_path: Path):
    path = page.write(tmp_path / "run" / "report.html", "one", **DATA)
    page.write(path, "two ∇", **DATA)
    assert "two ∇" in path.read_text(encoding="utf-8")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_large_runs_stay_small():
    line = "x[b<B,i<I,t<T]: f32[32] = tanh(add(matmul(o, W1), b1))\n"
    text = page.render(
        "large",
        equations={f"stage {k}": line * 200 for k in range(10)},
        program=line * 300,
        schedule_chart=[
            {"statement": f"s{t % 9}", "start": t // 9, "stop": t // 9 + 1, "phase": "p"}
            for t in range(90_000)
        ],
        curves={f"losses/{k}": [(x, math.sin(x)) for x in range(3000)] for k in range(20)},
    )
    assert len(text) < 300_000
    read(text)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(0, 1.0)],
        [(0, math.nan)],
        [(0, 1.0), (1, math.nan), (2, 3.0)],
        [(0, math.inf), (1, -math.inf), (2, 3.0)],
        [(k, 5.0) for k in range(100)],
        [(k, 0.0) for k in range(3)],
        [(5, 1.0), (5, 2.0)],
        [(k, math.nan if k % 3 else 1e30 * k) for k in range(500)],
        [(k, 1e-30 * k) for k in range(500)],
        [(k, 1e9 + 1e-7 * k) for k in range(50)],
        [(1e15 + k, -1.0) for k in range(50)],
        [(np.int64(3), np.float32(1.5)), (np.int64(1), np.float32(2.5))],
    ],
)
def test_any_curve_draws(points: list[tuple[float, float]]):
    text = charts({"charts/x": points, "plain": points})
    assert "nan" not in text.lower()
    assert "inf" not in text.lower().replace("no finite", "").replace("not finite", "")
    read(text)


def test_lost_points_are_counted():
    assert "1 not finite" in charts({"x": [(0, 1.0), (1, math.nan), (2, 3.0)]})


def test_gap_breaks_the_line():
    text = charts({"x": [(0, 0.0), (1, 1.0), (2, math.nan), (3, 0.0), (4, 1.0)]})
    (line,) = re.findall(r'class="line" d="([^"]*)"', text)
    assert line.count("M") == 2


def test_thinning_keeps_the_peaks():
    points = [(float(x), 0.0) for x in range(10_000)]
    points[4321] = (4321.0, 9.0)
    few = thinned(points, 100)
    assert len(few) <= 100
    assert (4321.0, 9.0) in few
    assert few == sorted(few)


def test_smoothing_keeps_straight_lines():
    line = [(float(x), 2.0 * x) for x in range(400)]
    middle = smoothed(line)[20:-20]
    assert all(abs(y - 2 * x) < 1e-6 for x, y in middle)
    assert len(smoothed(line)) == 400


@pytest.mark.parametrize("low", [-1e9, -3.0, 0.0, 1e-7, 5.0])
@pytest.mark.parametrize("span", [1e-6, 0.3, 1.0, 7.0, 2500.0, 1e12])
def test_ticks_are_few_and_inside(low: float, span: float):
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 6
    assert all(low - span * 1e-6 <= t <= low + span * (1 + 1e-6) for t in found)


def test_touching_spans_become_one_bar():
    spans = [{"statement": "act", "start": t, "stop": t + 1, "phase": "p"} for t in range(1000)]
    late = {"statement": "act", "start": 2000, "stop": 2001, "phase": "p"}
    text = draw_timeline([*spans, late])
    assert text.count("<rect") == 2
    assert "act: 0 to 1\u202f000, p" in text
    assert draw_timeline([]) == ""


def test_lanes_come_in_the_order_given():
    """Whichever thread happens to begin, thread 0 is the first."""
    spans = [
        {"statement": f"thread {k}", "start": start, "stop": start + 1, "phase": "p"}
        for k, start in enumerate((5, 2, 0))
    ]
    names = "<span>thread 0</span><span>thread 1</span><span>thread 2</span>"
    assert names in draw_timeline(spans)


def test_equation_colors():
    text = colored("d_W3[i<I]: f32[32,2] = sum(gW3[0:B,i,0:T], axis=0)  # f32 for x1")
    assert '<i class="d">d_W3</i>[i&lt;I]: <i class="t">f32[32,2]</i> =' in text
    assert '<i class="f">sum</i>(gW3[<i class="n">0</i>:B' in text
    assert text.endswith('<i class="c"># f32 for x1</i>')


@pytest.mark.parametrize("text", [TRACE, PROGRAM, EVIL, "", "'open", '"""open\n"', "x = {P}_m"])
def test_color_changes_no_text(text: str):
    assert read(code_html(text)).pres == [text.strip("\n")]


def test_table_fragment():
    rows = [{"store": "o", "n": np.int64(1234567)}, {"store": "a", "n": 0.25, "more": True}]
    found = read(table_html(rows))
    assert [w for w in ("store", "more", "1\u202f234\u202f567", "0.25", "True") if w in found.text]
    assert found.attributes.count(("class", "num")) == 3  # the head and both cells
    assert "none" in read(table_html([])).text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (15384, "15\u202f384"),
        (0.123456, "0.1235"),
        (2.0, "2"),
        (1234.56, "1234.6"),
        (None, ""),
        (True, "True"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        ("T", "T"),
    ],
)
def test_numbers(value: Any, text: str):
    assert number(value) == text


def test_sizes():
    sizes = [size(n) for n in (32, 1000, 1023, 15384, 3599416, 2**41)]
    assert sizes == [
        s.replace(" ", "\u00a0")
        for s in ("32 B", "1000 B", "1023 B", "15 KiB", "3.43 MiB", "2 TiB")
    ]


def test_progress_in_a_log_file():
    out = io.StringIO()
    with progress.track(100, "train", stream=out, every=0.05) as bar:
        for done in range(100):
            bar.update(done + 1, **{"charts/episodic_return": 21.25, "losses/loss": math.nan})
            time.sleep(0.002)
    lines = out.getvalue().splitlines()
    assert 2 <= len(lines) < 60  # of a hundred updates; how many is up to the machine
    assert "left" in lines[0]
    assert re.match(r"train 100/100  [\d,.]+/s  0:00 gone  episodic_return 21.25", lines[-1])
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


def test_progress_shows_where_it_stopped():
    out = io.StringIO()
    with suppress(KeyError), progress.track(10, "train", stream=out) as bar:
        bar.update(3)
        raise KeyError
    assert out.getvalue().startswith("train 3/10")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    out = Terminal()
    with progress.track(5, "train [x]", stream=out) as bar:
        for done in range(5):
            bar.update(done + 1, **{"charts/episodic_return": np.float32(8.5)})
    assert "train [x]" in out.getvalue()
    assert "episodic_return 8.5" in out.getvalue()
    assert "5/5" in out.getvalue()


def test_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    with progress.track(5, "train", stream=out) as bar:
        bar.update(5)
    assert "\x1b" not in out.getvalue()


def test_clock():
    assert [progress.clock(s) for s in (0, 75, 3675.9)] == ["0:00", "1:15", "1:01:15"]


def test_nothing_heavy_is_imported():
    code = "import sys, recurra.report.runs, recurra.report.page, recurra.report.progress\n"
    code += "print([m for m in ('rich', 'numpy', 'jax', 'safetensors') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
