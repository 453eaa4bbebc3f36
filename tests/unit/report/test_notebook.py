"""`_repr_html_`: what a notebook shows is well-formed, needs no script, and is escaped."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

import recurra as rc
from page_reader import EVIL, Reader, read
from recurra.report.runs import RunFolder


def shown(thing: Any) -> Reader:
    text = thing._repr_html_()
    assert "<script" not in text
    assert "<img" not in text
    return read(text)


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, T),):
        x = rc.like(rc.f32[2], (t,))
        x[0] = rc.constant([1.0, 2.0])
        x[t + 1] = x * 0.5
        total = x[0:T].sum()
        rc.output(x=x, total=total)
    return {"ctx": ctx, "x": x, "p": ctx.compile({T: 5}, backend="numpy")}


def test_a_declared_tensor(program: dict[str, Any]):
    (text,) = shown(program["x"]).pres
    first, *branches = text.splitlines()
    assert first == "# x[t]: f32[2] over (t)"
    assert re.sub(r":\d+ ", ": ", "\n".join(branches)) == (
        "x[t] = data where t == 0   # test_notebook.py:   x[0] = rc.constant([1.0, 2.0])\n"
        "x[t] = mul[t-1] where t >= 1   # test_notebook.py:   x[t + 1] = x * 0.5"
    )


def test_tensors_while_they_are_written():
    with rc.Context(num_dims=1) as ((t, T),):
        y = rc.like(rc.f32[2], (t,), name="y")
        assert shown(y).pres == ["# y[t]: f32[2] over (t)"]
        (text,) = shown((y * y)[0:T]).pres
        assert text.startswith("# mul[0:T]: f32[T,2]\nmul[t<T]: f32[2] = mul(y, y)   # test_")


def test_graph_and_schedule(program: dict[str, Any]):
    compiled = program["p"].compiled
    assert shown(program["ctx"]).pres == [str(program["ctx"].graph)]
    for graph in compiled.stages.graphs.values():
        assert shown(graph).pres == [str(graph)]
    assert shown(compiled.schedule).pres == [str(compiled.schedule)]


def test_a_plan(program: dict[str, Any]):
    text = shown(program["p"].compiled.plan).text
    for word in ("store", "points", "x", "t: T", "f32[2]", "40", "total"):
        assert word in text


def test_a_program(program: dict[str, Any]):
    found = shown(program["p"])
    assert "program for T=5" in found.text
    p = program["p"]
    last = list(p.equations)[-1]
    texts = (p.schedule_text, str(p.arena()), p.source, p.equations[last])
    assert found.pres == [t.strip("\n") for t in texts]
    assert found.attributes.count(("open", "")) == 1
    for word in ("host program", "memory", "passes", "canonicalize", "output"):
        assert word in found.text


def test_a_run(tmp_path: Path):
    with RunFolder.create(tmp_path, "CartPole-v1", "reinforce", 3, {"note": EVIL}) as run:
        for k in range(300):
            run.log(k + 1, **{"charts/episodic_return": k / 2, EVIL: math.nan if k == 7 else -k})
    found = shown(run)
    assert ("aria-label", "curve") in found.attributes
    text = found.text.replace("\u202f", "")
    for word in (run.path.name, "charts/episodic_return", "149.5", EVIL, "-299"):
        assert word in text
    points = next(v for name, v in found.attributes if name == "points")
    assert points.startswith("1.0,23.0 ")
    assert 100 <= len(points.split()) <= 150


def test_a_run_of_nothing(tmp_path: Path):
    assert "none" in shown(RunFolder(tmp_path)).text
