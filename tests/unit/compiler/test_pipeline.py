"""One list of passes: what applies runs, what does not leaves nothing, and the page has all."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest

import recurra as rc
from documents import ROOT, fenced, fill, table
from recurra import cli
from recurra.compiler.pass_manager import PassManager
from recurra.compiler.pipeline import PASSES, compile_context
from recurra.config import Config
from recurra.ir.graph import Graph
from recurra.ir.graph_parser import parse
from recurra.transforms.compile_context import CompileContext, Pass, always

EVERY = tuple(dict.fromkeys(PASSES))
GRAPH = """
dims b<B, t<T
x[b<B,t<T]: f32[] = uniform(id=1, counter=(b,t), shape=())
s[b<B,t<T]: f32[] = sum(x[b,0:t+1], axes=(0,))
return s
"""


def before_and_after(step: Pass) -> str:
    """The example in the docstring of its module."""
    lines = (inspect.getdoc(inspect.getmodule(step.run)) or "").splitlines()[1:]
    shown = [k for k, x in enumerate(lines) if x.startswith((" ", "→"))]
    return "\n".join(lines[shown[0] : shown[-1] + 1]) if shown else ""


def test_the_page_of_passes() -> None:
    order = [(f"`{p.name}`", p.summary, p.condition or "always") for p in PASSES]
    parts: list[str] = []
    for step in EVERY:
        shown = before_and_after(step)
        parts += [f"### {step.name}", step.summary, *([fenced(shown, "text")] if shown else [])]
    contents = {
        "order": table(("pass", "what it does", "runs if"), order),
        "passes": "\n\n".join(parts),
    }
    fill(ROOT / "docs" / "passes.md", contents)


def test_every_pass_says_what_it_does_and_has_a_name_of_its_own() -> None:
    assert len({step.name for step in EVERY}) == len(EVERY)
    for step in EVERY:
        assert step.summary.endswith("."), step.name
        assert step.condition or step.applies is always, step.name


def test_most_passes_run_only_where_they_have_something_to_do() -> None:
    assert sum(step.applies is always for step in PASSES) <= 15


def small() -> rc.Context:
    """A program of one equation along one dim: nothing recurs, nothing grows."""
    ctx = rc.Context(num_dims=1)
    with ctx as ((t, _),):
        rc.output(y=rc.uniform((t,), (3,)) * 2.0)
    return ctx


def test_what_does_not_apply_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("RECURRA_LOG", "passes")
    monkeypatch.setenv("RECURRA_DUMP", str(tmp_path))
    program = small().compile({"T": 4}, backend="numpy")
    ran = [row["name"] for row in program.pass_rows]
    assert ran == ["canonicalize", "vectorize", "reductions_to_accumulators"]
    assert [*program.equations] == ["trace", *ran]
    lines = capsys.readouterr().err.splitlines()
    assert [x.removeprefix("recurra: ").split(" → ")[0].rstrip("0123456789 ") for x in lines] == ran
    files = sorted(x.name.partition("-")[2] for x in tmp_path.iterdir())
    stages = ("trace", *ran, "schedule", "plan", "host")
    assert files == sorted(f"{x.replace(' ', '-')}.txt" for x in stages)


def test_no_pass_runs_on_what_it_made() -> None:
    ran: list[str] = []

    def run(graph: Graph, cx: CompileContext) -> Graph:
        ran.append("ran")
        cx.remark("as it was")
        return graph

    step = Pass("nothing", run)
    other = Pass("equal", lambda graph, cx: replace(graph))
    stages, graph = PassManager(compile_context({}), config=Config()), parse(GRAPH)
    stages.begin(graph)
    assert stages.run((step, step, other, step), graph) == graph
    assert ran == ["ran"]
    assert stages.decisions == ["as it was"]
    assert [*stages.graphs] == ["trace", "nothing", "equal"]


@pytest.mark.parametrize("step", EVERY, ids=[step.name for step in EVERY])
def test_opt_knows_every_pass(
    step: Pass, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graph.txt"
    file.write_text(GRAPH)
    assert cli.main(["opt", str(file), "-p", step.name, "--sizes", "B=2", "T=8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [x["name"] for x in found["passes"]] in ([], [step.name])
    assert parse(found["text"]).outputs


def test_opt_takes_the_options_that_a_pass_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graph.txt"
    file.write_text(GRAPH)
    opt = ["opt", str(file), "-p", "shard", "--sizes", "B=4", "T=8"]
    assert cli.main([*opt, "--options", "workers=2"]) == 0
    assert "B*shard" in capsys.readouterr().out
    assert cli.main([*opt, "--options", "worker=2"]) == 2
    assert "perhaps you meant workers" in capsys.readouterr().err
